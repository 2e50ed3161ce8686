"""Keeps a script's own rendezvous apart from the agent's store.

`TORCHELASTIC_USE_AGENT_STORE` says that somebody serves a store at MASTER_ADDR:MASTER_PORT, so rank 0 opens none. torch
believes it of whatever these two variables name. A script that starts ranks of its own (`torch.multiprocessing.spawn`)
sets both to a place where nobody serves, and all its ranks would wait there until they time out. So the promise holds
for the agent's own address alone, in the rank and in the processes that it spawns. Programs that it executes inherit
torchrun's variables as they are.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import multiprocessing.spawn
import os
import sys
from typing import Any

from trainmaster.agent.launcher import find_package
from trainmaster.contract.wire import environment

_RENDEZVOUS = "torch.distributed.rendezvous"


def install() -> None:
    """Do so in this process, and in those that `multiprocessing` spawns from it."""
    if environment.STORE not in os.environ:
        return
    if _RENDEZVOUS in sys.modules:
        _correct(sys.modules[_RENDEZVOUS])
    else:
        sys.meta_path.insert(0, _Finder())
    original = multiprocessing.spawn.get_command_line

    @functools.wraps(original)
    def get_command_line(**fields: Any) -> list[str]:
        words = original(**fields)
        if "-c" in words:
            code = words.index("-c") + 1
            words[code] = f"{find_package('own_store', 'install')}; {words[code]}"
        return words

    multiprocessing.spawn.get_command_line = get_command_line


class _Finder(importlib.abc.MetaPathFinder):
    """Corrects the rendezvous of torch when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _RENDEZVOUS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_and_correct(module: Any) -> None:
            execute(module)
            _correct(module)

        spec.loader.exec_module = exec_and_correct  # type: ignore[method-assign]
        return spec


def _correct(module: Any) -> None:
    original = module._torchelastic_use_agent_store

    @functools.wraps(original)
    def use_agent_store() -> bool:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        return bool(original()) and address == os.environ.get(environment.STORE)

    module._torchelastic_use_agent_store = use_agent_store
