"""Torch without its compiler, for scripts that compile nothing: they import this before their first optimizer.

The first optimizer of a process, and DistributedDataParallel, import the compiler to keep it away from their own code,
which takes seconds. A process that has the compiler already, a fork of a zygote, keeps it.

At its end an interpreter looks several times for garbage in all that torch has made, which takes as long as a fifth of
its import: here it leaves that alone. What is no part of a cycle still ends as it does at the end of any program.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


class _NoCompiler(ModuleType):
    """What torch asks of `torch._dynamo` where nothing is compiled."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")
    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        """What else is asked for is the compiler's own: then it is imported after all."""
        if name.startswith("__"):
            raise AttributeError(name)
        del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


sys.modules.setdefault("torch._dynamo", _NoCompiler("torch._dynamo"))
atexit.register(gc.freeze)
