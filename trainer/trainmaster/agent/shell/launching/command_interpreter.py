"""Which Python a user's command means: the one that runs this agent, whose forks ranks can be, or another one."""

from __future__ import annotations

import shutil
import sys

from trainmaster.host import interpreters


def is_own(program: str, given: str = "") -> bool:
    """Return True if `program` is the interpreter that runs this agent.

    A bare `python` means `given`, the user's own interpreter, if there is one, and otherwise this agent's.
    """
    if is_bare(program):
        return not given or interpreters.is_same(given, sys.executable)
    return interpreters.is_same(shutil.which(program) or program, sys.executable)


def is_bare(program: str) -> bool:
    """Return True if `program` names no particular Python. The name of another version than ours is particular."""
    return program in ("python", "python3", f"python3.{sys.version_info.minor}")


def find(program: str, given: str = "") -> str:
    """Return the program to run for the name of a Python."""
    return (given or sys.executable) if is_bare(program) else program
