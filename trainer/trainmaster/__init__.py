"""Trainmaster's trainer: `import trainmaster as tm`.

Importing this package imports nothing heavy: torch comes with the first name that needs it, because the
agent (standard library only) lives below this package too.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "init": "trainmaster.train.reported_steps",
    "State": "trainmaster.train.user_loop",
    "Run": "trainmaster.train.user_loop",
    "Plan": "trainmaster.parallel",
    "parallelize": "trainmaster.parallel.parallelize_module",
}

__all__ = ["Plan", "Run", "State", "__version__", "init", "parallelize"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'trainmaster' has no attribute {name!r}")
