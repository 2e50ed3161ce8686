"""Horovod over gloo, without ssh: `hvd.init()` finds the other ranks at the store of the round.

Horovod's own launcher starts a rendezvous server, starts the ranks by ssh, and tells each of them its numbers and the
server's address by variables. Here the agents start the ranks, and the round's store is the server
(`frameworks.http_rendezvous`). Horovod's elastic mode is not used: a failed rank is restarted as in any other job.

Horovod asks that server by a client of its own, which takes the address up to the first colon for a name and looks it
up among those of IPv4 (`HTTPRequest.hpp` in its sources). So it reaches no address of IPv6, with or without brackets.

Steps are seen at torch's optimizers, as in all scripts, and in scripts of TensorFlow as in a job of that framework.
They are recorded with the profiler of the framework whose part of Horovod the script has imported.
"""

from __future__ import annotations

import functools
import importlib
import socket
import sys
import types
from typing import Any

from trainmaster.agent.frameworks import pytorch, tensorflow
from trainmaster.agent.frameworks.framework import Facts, Framework, Meeting, Profiler, Watch

ADDRESS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_BASICS = "horovod.common.basics"
_PROFILER_STARTS = {**pytorch.PROFILER.starts, **tensorflow.PROFILER.starts}


def environment(facts: Facts) -> dict[str, str]:
    """Return what Horovod's launcher sets in each rank."""
    return {
        ADDRESS: facts.store_host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(facts.store_port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_HOSTNAME": f"node-{facts.node}",  # ranks with the same name count as ranks of one node
        "HOROVOD_RANK": str(facts.rank),
        "HOROVOD_SIZE": str(facts.world_size),
        "HOROVOD_LOCAL_RANK": str(facts.local_rank),
        "HOROVOD_LOCAL_SIZE": str(facts.local_world_size),
        "HOROVOD_CROSS_RANK": str(facts.node),
        "HOROVOD_CROSS_SIZE": str(facts.nodes),
    }


def defaults(facts: Facts) -> dict[str, str]:
    """Return the library that sums tensors on the CPU. Without it a Horovod that was built with MPI would take MPI."""
    return {"HOROVOD_CPU_OPERATIONS": "gloo"}


def _serve(listener: socket.socket) -> None:
    # Imported where it serves: ranks and agents of all frameworks import this file, and http.server takes its time.
    importlib.import_module("trainmaster.agent.frameworks.http_rendezvous").serve(listener)


def _watch_init(module: Any, watch: Watch) -> None:
    original = module.HorovodBasics.init

    @functools.wraps(original)
    def init(basics: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(basics, *args, **kwargs)
        watch.met()
        return result

    module.HorovodBasics.init = init
    # Where a fork has inherited the import, `horovod.torch.init` is bound to the original already.
    for name in [name for name in sys.modules if name.startswith("horovod.")]:
        for key, value in [*vars(sys.modules[name]).items()]:
            if isinstance(value, types.MethodType) and value.__func__ is original:
                setattr(sys.modules[name], key, types.MethodType(init, value.__self__))


def _meets_by_environment(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Return True if `HorovodBasics.init(self, comm, …)` got no communicator of MPI: each rank trains alone."""
    comm = args[1] if len(args) > 1 else given.get("comm")
    return comm is None or isinstance(comm, list | tuple)


def _framework_profiler() -> Profiler:
    """Return the profiler of the framework that the script trains with."""
    return tensorflow.PROFILER if "horovod.tensorflow" in sys.modules else pytorch.PROFILER


def _start_profiler(folder: str) -> tuple[Profiler, Any]:
    profiler = _framework_profiler()
    return profiler, profiler.start(folder)


def _stop_profiler(started: tuple[Profiler, Any], folder: str) -> None:
    profiler, handle = started
    profiler.stop(handle, folder)


def _name_step(step: int) -> Any:
    return _framework_profiler().step(step)


HOROVOD = Framework(
    "Horovod",
    ("horovod",),
    environment,
    defaults,
    store=_serve,
    needs_ipv4=True,
    hooks={_BASICS: _watch_init, **pytorch.HOOKS, **tensorflow.STEPS},
    meeting={_BASICS: Meeting("HorovodBasics.init", _meets_by_environment)},
    profiler=Profiler("horovod", _start_profiler, _stop_profiler, _name_step, _PROFILER_STARTS),
)
