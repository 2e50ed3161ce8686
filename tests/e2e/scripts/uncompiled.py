"""Torch without its compiler, for scripts that compile nothing: they import this before their first optimizer.

The first optimizer of a process, and DistributedDataParallel, import the compiler to keep it away from their own code.
That takes an executed rank longer than torch itself does. A process that has the compiler already, a fork of a zygote,
keeps it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


class _NoCompiler(ModuleType):
    """What torch 2.11 to 2.15 asks of `torch._dynamo` where nothing is compiled."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return function

    @staticmethod
    def graph_break() -> None:
        pass


sys.modules.setdefault("torch._dynamo", _NoCompiler("torch._dynamo"))
