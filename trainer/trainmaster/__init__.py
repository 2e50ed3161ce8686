"""Trainmaster's trainer: `import trainmaster as tm`.

The import of this package itself is cheap: torch is imported with the first name that needs it. The agent, which uses
the standard library only, is part of this package too.
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
    "parallelize": "trainmaster.parallel.parallelize_user_module",
}

__all__ = ["Plan", "Run", "State", "__version__", "init", "parallelize"]


def __getattr__(name: str) -> Any:
    """Import a name of the facade when it is first used. Raises AttributeError for an unknown name."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'trainmaster' has no attribute {name!r}")
