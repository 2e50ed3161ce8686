"""Which Python runs the scripts of a local run: that of the person's PATH where it has torch, or else our own."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainmaster.contract.launch import LaunchRefused, parse
from trainmaster.contract.launch.python_options import is_python

_LIMIT_S = 30.0
_PROBE = """
import importlib.metadata, importlib.util, json, sys
torch = importlib.util.find_spec("torch") is not None
try:
    torch = importlib.metadata.version("torch") if torch else ""
except importlib.metadata.PackageNotFoundError:
    torch = "of its own"
print("\\n" + json.dumps([sys.executable, sys.version.split()[0], torch]))
"""


@dataclass(frozen=True)
class Interpreter:
    """`path`: what `python` means in a command; "": the interpreter of Trainmaster. `words`: which it is, and why."""

    path: str
    words: str


def of_command(command: Sequence[str], search: str) -> Interpreter:
    """Return the interpreter that `python` means, with words about the one that runs a command. search: as below."""
    chosen = choose(search)
    named = _named(command)
    return replace(chosen, words=f"scripts run by {named}, which the command names") if named else chosen


def _named(command: Sequence[str]) -> str:
    """The interpreter that a command asks for by more than `python`; "" if there is none."""
    try:
        program = parse(list(command)).argv[0]
    except LaunchRefused:
        return ""
    bare = ("python", "python3", f"python3.{sys.version_info.minor}")
    return program if is_python(program) and program not in bare else ""


@functools.cache
def choose(search: str) -> Interpreter:
    """Return the interpreter that ranks run. search: the person's PATH."""
    own = sys.executable
    found = shutil.which("python", path=search) or shutil.which("python3", path=search)
    if found is None:
        return Interpreter("", f"scripts run by {_described(own)}, that of Trainmaster, since PATH has none")
    if os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(own)):
        return Interpreter("", f"scripts run by {_described(own)}")
    probed = _probe(found)
    if probed is None:
        reason = f"{found}, which PATH has, can't be run"
        return Interpreter("", f"scripts run by {_described(own)}, that of Trainmaster: {reason}")
    path, version, torch = probed
    if os.path.dirname(path) == os.path.dirname(own):
        return Interpreter("", f"scripts run by {_described(own)}")
    if not torch:
        reason = f"{path}, which PATH has, has no torch"
        return Interpreter("", f"scripts run by {_described(own)}, that of Trainmaster: {reason}")
    return Interpreter(path, f"scripts run by {path} (Python {version}, torch {torch}), which PATH has")


def _described(own: str) -> str:
    try:
        torch = f"torch {importlib.metadata.version('torch')}"
    except importlib.metadata.PackageNotFoundError:
        torch = "no torch"
    return f"{own} (Python {sys.version.split()[0]}, {torch})"


def _probe(program: str) -> tuple[str, str, str] | None:
    """(path, version, version of torch or "") of an interpreter; None if it can't be run."""
    try:
        done = subprocess.run(
            [program, "-c", _PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S
        )
        path, version, torch = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return str(path), str(version), str(torch)
