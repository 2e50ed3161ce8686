"""Where this package lies, for code that other interpreters run."""

from __future__ import annotations

import os

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def code_of_call(module: str, function: str) -> str:
    """Return Python code for `-c` that calls a function of `module`, a full name such as trainmaster.host.pinning.

    The code finds the package wherever it lies, and leaves `sys.path` as it was.
    """
    package, _, name = module.rpartition(".")
    root = os.path.dirname(_PACKAGE)
    return f"import sys; sys.path.append({root!r}); from {package} import {name}; sys.path.pop(); {name}.{function}()"
