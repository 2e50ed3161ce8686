"""JAX: `jax.distributed.initialize()` without arguments, with a coordinator that rank 0 opens for one round.

JAX asks a list of cluster environments for its place, and takes the first one that answers. Ours is put first, because
that of Open MPI, SLURM or Kubernetes could also answer, with numbers of something else. What `jax.jit` returns is
called without any Python code of JAX, so steps cannot be observed: the script reports them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.agent.frameworks.accelerators import has_accelerator
from trainmaster.agent.frameworks.framework import Facts, Framework, Meeting, Profiler, Watch, from_numbers

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
BIND = "JAX_COORDINATOR_BIND_ADDRESS"


def peers(facts: Facts, addresses: Sequence[str]) -> dict[str, str]:
    """Return where the coordinator is. Rank 0 opens it on that address alone, not on all interfaces of its pod."""
    where = {COORDINATOR: addresses[0]}
    return {**where, BIND: addresses[0]} if facts.rank == 0 else where


def _register(module: Any, watch: Watch) -> None:
    """Put an environment that reads the variables of this rank in front of those that JAX knows."""
    known = module.ClusterEnv._cluster_types

    class TrainmasterCluster(module.ClusterEnv):  # type: ignore[misc]
        name = "trainmaster"

        @classmethod
        def is_env_present(cls) -> bool:
            return COORDINATOR in os.environ and "RANK" in os.environ

        @classmethod
        def get_coordinator_address(cls, timeout_secs: int | None = None, override_coordinator_port: Any = None) -> str:
            return os.environ[COORDINATOR]

        @classmethod
        def get_process_count(cls) -> int:
            return from_numbers(os.environ).world_size

        @classmethod
        def get_process_id(cls) -> int:
            return from_numbers(os.environ).rank

        @classmethod
        def get_local_process_id(cls) -> int | None:
            """Return the local rank if several ranks share a node with devices, so that each takes its own device.

            A run on one machine is one node, whose devices all ranks of all its pods see.
            """
            facts = from_numbers(os.environ)
            return facts.local_rank if facts.local_world_size > 1 and has_accelerator(os.environ) else None

    known.remove(TrainmasterCluster)
    known.insert(0, TrainmasterCluster)


def coordinator(address: str | None, bind: str | None, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return (address, bind address) of the coordinator for a script that calls `initialize` with these two.

    MASTER_ADDR:MASTER_PORT becomes the coordinator of this round, since the round's store listens on that port. For
    every other address of a script, rank 0 must not open the coordinator where ours would be: JAX would take the
    address of our variable, and not the port that the script gives to the other ranks. So it gets JAX's own default.
    """
    ours = env.get(COORDINATOR)
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if ours and address in (f"{host}:{port}", f"[{host}]:{port}"):
        return ours, None
    called = address or ours
    if called and bind is None and env.get(BIND, called) != called:
        bind = f"[::]:{called.rpartition(':')[2]}"
    return address, bind


def _watch_initialize(module: Any, watch: Watch) -> None:
    """Report that the ranks have met, and let them meet at an address that the script gives, too."""
    original = module.State.initialize
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        given = call.arguments
        given["coordinator_address"], given["coordinator_bind_address"] = coordinator(
            given.get("coordinator_address"), given.get("coordinator_bind_address"), os.environ
        )
        original(*call.args, **call.kwargs)
        watch.met()

    module.State.initialize = initialize


def _meets_by_environment(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Return True if `State.initialize(self, coordinator_address, …)` was called without an address."""
    address = args[1] if len(args) > 1 else given.get("coordinator_address")
    return address is None and COORDINATOR not in os.environ


def _start_profiler(folder: str) -> None:
    importlib.import_module("jax.profiler").start_trace(folder)


def _stop_profiler(_: None, folder: str) -> None:
    importlib.import_module("jax.profiler").stop_trace()


def _name_step(step: int) -> Any:
    return importlib.import_module("jax.profiler").StepTraceAnnotation("step", step_num=step)


JAX = Framework(
    "JAX",
    ("jax",),
    peers=peers,
    addresses=True,
    hooks={"jax._src.clusters": _register, "jax._src.distributed": _watch_initialize},
    meeting={"jax._src.distributed": Meeting("State.initialize", _meets_by_environment)},
    unseen="the steps of a JAX script are not seen from outside: call trainmaster.init() once and its "
    "report(step=N) after each step, so that progress is shown and hangs are noticed",
    profiler=Profiler("jax", _start_profiler, _stop_profiler, _name_step, {"jax._src.profiler": "start_trace"}),
)
