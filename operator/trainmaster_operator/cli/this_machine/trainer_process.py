"""Parts of the trainer that import torch. They run in a process of their own, so that the command line need not
import torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal, why


def check_installed(verb: str, *libraries: str) -> None:
    """Raise Refusal if torch, or one of these libraries, is not installed."""
    missing = [library for library in ("torch", *libraries) if importlib.util.find_spec(library) is None]
    if missing:
        raise Refusal(
            f"{verb} needs {' and '.join(missing)}, which {sys.executable} can't import: `make venv` in a clone of "
            f"Trainmaster installs them, and so does pip install {' '.join(missing)}"
        )


def check_file(option: str, file: Path | None) -> None:
    """Raise Refusal if this file cannot be written; leave nothing behind."""
    if file is None or (file.exists() and not file.is_file() and not file.is_dir()):
        return  # It is a pipe or a device, and opening it would have an effect.
    folder = file.absolute().parent
    if not folder.is_dir():
        raise Refusal(f"{option} {file}: there is no folder {folder}")
    existed = file.exists()
    try:
        with open(file, "ab"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        raise Refusal(f"{option} {file}: can't be written: {why(error)}; choose another file") from None


def run(module: str, arguments: Iterable[str], given: bytes | None = None, threads: int | None = None) -> int:
    """Run a module of `trainmaster.tools` and return its exit code. `given`: its input. `threads`: number of threads
    of each of its processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else None
    command = [sys.executable, "-m", f"trainmaster.tools.{module}", *arguments]
    return subprocess.run(command, input=given, env=environment, check=False).returncode
