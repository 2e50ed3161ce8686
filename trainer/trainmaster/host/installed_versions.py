"""Versions of packages that are installed, without importing them: `installed_versions.py NAME…` prints them as JSON.

It is run by whichever interpreter a job's command names, so it imports nothing of ours, and runs under Python 3.8 and
newer.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable

PYTHON = "Python"


def python_version() -> str:
    """Return the version of this interpreter, for instance 3.11.9."""
    return sys.version.split()[0]


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of this interpreter and of those packages in `names` that are installed for it."""
    metadata = importlib.import_module("importlib.metadata")  # it takes some ten milliseconds
    found = {PYTHON: python_version()}
    for name in names:
        try:
            version = metadata.version(name)
        except Exception:  # noqa: BLE001  it is not installed, or what describes it is broken
            continue
        if isinstance(version, str):
            found[name] = version
    return found


if __name__ == "__main__":
    print(json.dumps(versions(sys.argv[1:])))
