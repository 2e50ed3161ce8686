"""How a rank meets the others: at the agent's store, where ranks are compared; a script's own rendezvous stays apart.

`TORCHELASTIC_USE_AGENT_STORE` tells torch that an agent serves a store at MASTER_ADDR:MASTER_PORT, so that rank 0 opens
none. torch believes it for any values of these two variables. A script that starts ranks of its own
(`torch.multiprocessing.spawn`) sets both to an address where no store is served, and all its ranks would wait there
until they time out. So the variable is obeyed only for the agent's own address, in the rank and in the processes that
it spawns or forks from a server. Programs that it executes inherit torchrun's variables unchanged.

The agent's store is that of the whole round, and keeps what was told there. A script may end its world and begin
another one, as one that launches a function for each fold does. Such a world would find the addresses of the one before
it, which nobody answers any more, so it gets a part of the store of its own.

A rank that connects to the agent's store compares itself with the others. The request for that replaces the one by
which torch counts the ranks that have come, because nothing waits for this number at the agent's store.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable
from typing import Any

from trainmaster.contract.wire import environment
from trainmaster.host.own_package import code_of_call
from trainmaster.rank import software_comparison

_RENDEZVOUS = "torch.distributed.rendezvous"
_C10D = "torch.distributed.distributed_c10d"

_worlds_ended = 0
"""How many worlds that began at the agent's store this process has ended. It is the same in all ranks of the next one,
because a world that some of them had elsewhere, such as an evaluation of one rank alone, does not count."""

_is_at_agents_store = False
"""Whether the newest world of this process began at the agent's store and has not ended."""


def install(*, own_loop: bool = False) -> None:
    """Correct the rendezvous in this process, and in those that `multiprocessing` starts from it.

    With `own_loop`, a rank that differs from the others raises ConfigError, which our loop reports. A script that
    differs ends (`software_comparison.compare_script`).
    """
    if environment.STORE not in os.environ:
        return
    correct = functools.partial(_correct, own_loop=own_loop)
    if _RENDEZVOUS in sys.modules:
        correct(sys.modules[_RENDEZVOUS])
    else:
        sys.meta_path.insert(0, _Finder(correct))
    if own_loop:
        return
    original = multiprocessing.spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), "trainmaster": _Installation()}

    multiprocessing.spawn.get_preparation_data = get_preparation_data


class _Installation:
    """Corrects the rendezvous in the process that unpickles it.

    A process that `spawn` or `forkserver` starts unpickles what prepares it before it runs anything of the script.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (code_of_call(__name__, "install"), {})


class _Finder(importlib.abc.MetaPathFinder):
    """Corrects torch's rendezvous when it is imported."""

    def __init__(self, correct: Callable[[Any], None]) -> None:
        self._correct = correct

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
            self._correct(module)

        spec.loader.exec_module = exec_and_correct  # type: ignore[method-assign]
        return spec


def _correct(module: Any, *, own_loop: bool) -> None:
    _keep_apart(module)
    _compare_at(module, own_loop=own_loop)


def _compare_at(module: Any, *, own_loop: bool) -> None:
    original = getattr(module, "_create_c10d_store", None)
    if original is None:
        return
    compare = software_comparison.compare if own_loop else software_comparison.compare_script

    @functools.wraps(original)
    def create_store(
        hostname: str, port: int, rank: int, world_size: int, timeout: Any, *more: Any, **named: Any
    ) -> Any:
        if f"{hostname}:{port}" != os.environ.get(environment.STORE) or not module._torchelastic_use_agent_store():
            return original(hostname, port, rank, world_size, timeout, *more, **named)
        store = module.TCPStore(host_name=hostname, port=port, is_master=False, timeout=timeout, wait_for_workers=False)
        compare(store)
        _count_ends(sys.modules.get(_C10D))
        global _is_at_agents_store
        _is_at_agents_store = True
        return sys.modules["torch.distributed"].PrefixStore(f"world-{_worlds_ended}", store) if _worlds_ended else store

    module._create_c10d_store = create_store


def _count_ends(module: Any) -> None:
    """Count the worlds at the agent's store that end, once a first one begins. torch ends each world by this function,
    however it is asked."""
    original = getattr(module, "_update_default_pg", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def update_default_pg(group: Any) -> None:
        global _worlds_ended, _is_at_agents_store
        if group is None:
            _worlds_ended += _is_at_agents_store
            _is_at_agents_store = False
        original(group)

    module._update_default_pg = update_default_pg


def _keep_apart(module: Any) -> None:
    original = module._torchelastic_use_agent_store

    @functools.wraps(original)
    def use_agent_store() -> bool:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        return bool(original()) and address == os.environ.get(environment.STORE)

    module._torchelastic_use_agent_store = use_agent_store
