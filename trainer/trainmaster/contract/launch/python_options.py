"""The interpreter's own command line: `python [options] (SCRIPT | -m MODULE | -c CODE | -) [arguments]`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from trainmaster.contract.launch.launch_errors import LaunchRefused

_NAME = re.compile(r"(?:python|pypy)(?:3(?:\.\d+)?t?)?")
_WITH_VALUE = "XW"
_WITHOUT_PROGRAM = "hV?"
_LONG_WITH_VALUE = "--check-hash-based-pycs"


@dataclass(frozen=True)
class Interpreted:
    """What an interpreter is told to run. `entry` is None if it runs no program, as with `python --version`."""

    entry: dict[str, Any] | None
    flags: list[str] = field(default_factory=list)  # but -u: ranks are unbuffered anyway


def is_python(program: str) -> bool:
    """Return True if a program's name is that of a Python interpreter, in any folder."""
    return bool(_NAME.fullmatch(program.rpartition("/")[2]))


def read_python(argv: list[str]) -> Interpreted:
    """Read the arguments of an interpreter, `argv[0]`, as it does itself: options can be glued (`-um pkg`, `-Xdev`).

    Raises LaunchRefused if there is no program to run, or if it would come from the standard input.
    """
    flags: list[str] = []
    rest = argv[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        if word.startswith("--"):
            if word.split("=")[0] != _LONG_WITH_VALUE:
                return Interpreted(None)  # --version, --help and their kin
            flags.append(word)
            if "=" not in word and rest:
                flags.append(rest.pop(0))
            continue
        for place, letter in enumerate(word[1:], start=2):
            glued = word[place:]
            if letter in "cm":
                value = glued or (rest.pop(0) if rest else "")
                if not value:
                    raise LaunchRefused(f"{argv[0]} -{letter}: {_MISSING[letter]} is expected after it")
                return Interpreted(_of_option(letter, value, rest), flags)
            if letter in _WITHOUT_PROGRAM:
                return Interpreted(None)
            if letter in _WITH_VALUE:
                flags += [f"-{letter}", glued or (rest.pop(0) if rest else "")]
                break
            if letter != "u":
                flags.append(f"-{letter}")
    if not rest:
        raise LaunchRefused(f"{argv[0]} has no script to run: write [{argv[0]}, train.py]")
    if rest[0] == "-":
        raise LaunchRefused(
            f"{argv[0]} - reads its program from the standard input, which is empty for ranks: write the program into "
            f"a file, and [{argv[0]}, FILE]"
        )
    return Interpreted({"kind": "script", "path": rest[0], "args": rest[1:]}, flags)


_MISSING = {"c": "code", "m": "the name of a module"}


def _of_option(letter: str, value: str, args: list[str]) -> dict[str, Any]:
    if letter == "m":
        return {"kind": "module", "name": value, "args": list(args)}
    return {"kind": "code", "code": value, "args": list(args)}


def program_of(python: str, entry: dict[str, Any], flags: list[str]) -> list[str]:
    """Return the command line by which the interpreter `python` runs `entry`."""
    if entry["kind"] == "module":
        return [python, *flags, "-m", entry["name"], *entry["args"]]
    if entry["kind"] == "code":
        return [python, *flags, "-c", entry["code"], *entry["args"]]
    return [python, *flags, entry["path"], *entry["args"]]
