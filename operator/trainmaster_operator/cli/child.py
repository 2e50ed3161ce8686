"""The parts of the trainer that import torch: run in a process of their own, so that the command line needn't."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal


def check_installed(verb: str, *libraries: str, extra: str = "train") -> None:
    """Raises Refusal when torch, or one of these libraries, isn't there; all come with this extra."""
    for library in ("torch", *libraries):
        if importlib.util.find_spec(library) is None:
            needed = " and ".join(["the trainer", *libraries])
            raise Refusal(f"{verb} needs {needed}: pip install 'trainmaster[{extra}]'")


def check_folder(file: Path | None) -> None:
    """Raises Refusal when there is no folder for this file to be written in."""
    if file is not None and not file.absolute().parent.is_dir():
        raise Refusal(f"{file}: there is no folder {file.absolute().parent}")


def run(module: str, arguments: Iterable[str], given: bytes | None = None, threads: int | None = None) -> int:
    """The exit code of a module of the trainer. given: its input; threads: of each of its processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else None
    command = [sys.executable, "-m", f"trainmaster.{module}", *arguments]
    return subprocess.run(command, input=given, env=environment, check=False).returncode
