"""Commands that a benchmark measures: each in a session of its own, with what it says in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from trainmaster_operator.local import process_tree

ENDS_S = 15.0
FAIR = {"PYTHONDONTWRITEBYTECODE": ""}
"""Variables of every command. Without bytecode each start would compile its imports, and a system that imports again
after a failure would lose by a setting of this machine."""


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Let SIGTERM raise SystemExit within the block, so that `finally` blocks end what this program has started.

    A second SIGTERM is ignored: it would interrupt them.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def popen(
    command: list[str], variables: dict[str, str], output: Path, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a folder, with these variables added to this process's own.

    It is told to end when this thread ends, whatever ends it. It has nothing to read.
    """
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **FAIR, **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=partial(process_tree.die_with_parent, signal.SIGTERM),
        )


def run(command: list[str], variables: dict[str, str], output: Path, limit_s: float) -> int | None:
    """Run a command to its end and return its exit code; after the limit end all that it has started, return None."""
    return wait(popen(command, variables, output), limit_s)


def wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return a started command's exit code; after the limit end all that it has started, and return None.

    The same is ended after Ctrl-C, which a terminal does not send to another session.
    """
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_all(process)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Tell a command to end, which ends what it has started; kill it with all that is below it if it does not."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGSTOP)  # it must start nothing while those below it are killed
        process_tree.kill_all(lambda table: process_tree.below([process.pid], table))
        process.kill()
        process.wait()
