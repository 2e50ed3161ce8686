"""Checks of the program and of the script that a command runs on this machine. Neither is executed."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

from trainmaster_operator.cli.refusal import why

PYTHONS = ("python", "python3")


def program_problems(program: str, folder: Path, search: str) -> Iterator[str]:
    """Yield why a program can't be started in `folder`. `search`: its PATH."""
    if program in PYTHONS or shutil.which(program, path=search):
        return
    file = folder / program
    if not os.path.isfile(file):
        yield f"no program {program} is found"
    elif not os.access(file, os.X_OK):
        if program.endswith(".py"):
            yield f"{program} is a file that is not executable; write [python, {program}]"
        else:
            yield f"{program} is a file that is not executable; `chmod +x {file}` makes it executable"


def script_problems(path: Path, *, own_python: bool) -> Iterator[str]:
    """Yield why Python can't run a script. `own_python`: the interpreter of this process runs it, so the grammar is
    known."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # A null character is in no path.
        yield f"there is no script {path}"
        return
    except OSError as error:
        yield f"the script {path} can't be read: {why(error)}"
        return
    if path.is_dir() and not (path / "__main__.py").is_file():
        yield f"{path} is a folder without a __main__.py, which Python would run: write the name of a script in it"
    elif own_python and path.suffix == ".py" and path.is_file():
        yield from _syntax_problems(path)


def _syntax_problems(path: Path) -> Iterator[str]:
    try:
        source = path.read_bytes()
    except OSError:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"{path}, line {error.lineno}" if error.lineno else str(path)
        yield f"{place}: {type(error).__name__}: {error.msg}"
    except ValueError as error:  # Null bytes, in some versions of Python.
        yield f"{path}: {error}"
