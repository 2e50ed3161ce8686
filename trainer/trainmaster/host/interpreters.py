"""Which paths of interpreters mean the same Python: the same program with the same packages."""

from __future__ import annotations

import os


def is_same(one: str, other: str) -> bool:
    """Return True if both paths lead to the same program, which has the same packages by each of them.

    The interpreter of a virtual environment is a link to one that has other packages. Every other link, such as the
    `/usr/local/bin/python` of an image, has the packages of the program that it leads to.
    """
    return os.path.realpath(one) == os.path.realpath(other) and _environment(one) == _environment(other)


def _environment(program: str) -> str:
    """Return the virtual environment of an interpreter, "" if it is in none: Python looks for the file in the same two
    folders (getpath.py)."""
    folder = os.path.dirname(os.path.abspath(program))
    for place in (folder, os.path.dirname(folder)):
        if os.path.exists(os.path.join(place, "pyvenv.cfg")):
            return os.path.realpath(place)
    return ""
