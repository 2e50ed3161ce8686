"""Runs the commands that pages show, each as cheap as it can be: forked from a process that has imported what it needs.

`trainmaster` is forked from the warm interpreter of tests/e2e. Its commands that start a process with torch run here,
and fork that process. Other programs of ours are started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import tied
from tests.cli import warm_child
from tests.docs.blocks import ROOT
from tests.e2e.harness import LIMIT_S, run_environment, started
from tests.e2e.warm import COMMAND
from tests.trainer.ranks import shared
from trainmaster_operator.cli.main import main

ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Jobs of the pages say no device, as a person's. Here they train on the CPU, whatever machine this is."""

WITH_TORCH = ("plan", "export", "import", "tokenize")


class Executor:
    """`Execute` of tests/docs/sessions.py. The working folder is the session's, and `child.run` is `run_child_here`."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, words: list[str], folder: Path) -> tuple[int, str]:
        program = words[0].removeprefix(".venv/bin/")
        if program == "python":
            return _run_python(words, folder)
        assert program == "trainmaster", f"{program} can't be run here: a mark `long` or `cluster` is missing"
        if words[1] in WITH_TORCH:
            self._captured.readouterr()
            code = main(words[1:])
            said = self._captured.readouterr()
            return code, said.out + said.err
        with started([sys.executable, "-m", COMMAND, *words[1:]], ON_CPU) as process:
            output, _ = process.communicate(timeout=LIMIT_S)
            return process.wait(), output


def run_child_here(
    module: str, arguments: Iterable[str], given: bytes | None = None, threads: int | None = None
) -> int:
    """Do what `trainmaster_operator.cli.this_machine.trainer_process.run` does, in this process's working folder, and return the exit code."""
    code, out, err = shared().call(_run_in, os.getcwd(), module, [*arguments], (given or b"").decode())
    os.write(1, out.encode())
    os.write(2, err.encode())
    return int(code)


def _run_in(folder: str, module: str, arguments: list[str], given: str) -> tuple[int, str, str]:
    """(exit code, output, error output). The process that calls this has its own folder again afterwards."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        return warm_child._run(module, arguments, given)
    finally:
        os.chdir(before)


def _run_python(words: list[str], folder: Path) -> tuple[int, str]:
    """(exit code, what it said) of `python …`. What `> file` names gets the output, and errors are said."""
    redirected = words[-2] == ">"
    words, target = (words[:-2], folder / words[-1]) if redirected else (words, folder / ".output")
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "operator", ROOT / "trainer"))
    with target.open("w") as output:
        process = tied.popen(
            [sys.executable, *words[1:]],
            cwd=folder,
            env={**run_environment(), **ON_CPU, "PYTHONPATH": paths},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
        _, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, ("" if redirected else target.read_text()) + errors
