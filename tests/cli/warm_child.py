"""The trainer's commands as `cli/this_machine/trainer_process.py` runs them, but in forks that have torch already."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.trainer.forks import forked
from tests.trainer.ranks import shared


def run(module: str, arguments: Iterable[str], given: bytes | None = None, threads: int | None = None) -> int:
    """Do what `trainer_process.run` does, and return the exit code. Ranks and their parents always have one thread."""
    code, out, err = shared().call(_run, module, [*arguments], (given or b"").decode())
    os.write(1, out.encode())
    os.write(2, err.encode())
    return code


def run_unread(module: str, arguments: Iterable[str], given: bytes) -> tuple[int, str]:
    """Run a module whose output goes into a pipe that nobody reads. Return its exit code and error output."""
    code, _, err = shared().call(_run, module, [*arguments], given.decode(), True)
    return code, err


def _run(module: str, arguments: list[str], given: str, unread: bool = False) -> tuple[int, str, str]:
    """(exit code, output, error output) of a module of `trainmaster.tools`."""
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("in", "out", "err")]
        files[0].write_text(given)

        def main() -> None:
            for fd, file in enumerate(files):
                os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), fd)
            if unread:
                reading, writing = os.pipe()
                os.close(reading)
                os.dup2(writing, 1)
            sys.argv[1:] = arguments
            runpy.run_module(f"trainmaster.tools.{module}", run_name="__main__", alter_sys=True)

        code = os.waitstatus_to_exitcode(os.waitpid(forked(main), 0)[1])
        return code, files[1].read_text(), files[2].read_text()
