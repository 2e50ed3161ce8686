"""Starts an executed rank under observation: what a fork of the zygote gets for free, an interpreter gets from here."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_ENTRY = "TRAINMASTER_ENTRY"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def find_package(module: str, function: str) -> str:
    """Return Python code for `-c` that calls a function of `module`, a full name such as trainmaster.rank.script.

    The code finds the package wherever it lies, and leaves `sys.path` as it was.
    """
    package, _, name = module.rpartition(".")
    return f"import sys; sys.path.append({_ROOT!r}); from {package} import {name}; sys.path.pop(); {name}.{function}()"


def command(entry: dict[str, Any], flags: list[str]) -> tuple[list[str], dict[str, str]]:
    """The argument list, and what to add to the environment, that run `entry` under this interpreter."""
    return [sys.executable, *flags, "-c", find_package(__name__, "main")], {_ENTRY: json.dumps(entry)}


def main() -> None:
    """Run the entry that the environment names."""
    entry = json.loads(os.environ.pop(_ENTRY))
    for name in ("TRAINMASTER_PROGRESS_FD", "TRAINMASTER_CHANNEL_FD"):
        if name in os.environ:
            os.set_inheritable(int(os.environ[name]), False)
    from trainmaster.rank import injection, script

    injection.claim()
    sys.exit(script.run(entry))
