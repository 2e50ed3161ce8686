"""Counts the collectives of the whole world that this process enters, and the time that it waits in any collective.

The number is in the rank's progress record before the collective begins: among ranks that are stuck, the one whose
number is behind did not arrive. Only calls from Python are seen (our loop, FSDP2, `torch.distributed`); the buckets
that DDP reduces from C++ are not, and neither is a wait on a device while the host goes on.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

from trainmaster.contract.wire.progress_record import COLLECTIVES, ProgressRecord

_KINDS = {
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce",
    "allgather": "allgather",
    "_allgather_base": "allgather",
    "all_gather_single": "allgather",
    "all_gather_single_coalesced": "allgather",
    "allgather_coalesced": "allgather",
    "allgather_into_tensor_coalesced": "allgather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall",
    "all_to_all_single": "alltoall",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""The collective that each method of a process group is, for all supported releases of torch."""

_waited_ns = 0
_entered = 0


def waited_ns() -> int:
    """Return the nanoseconds that this process has spent waiting in collectives."""
    return _waited_ns


def watch(c10d: Any, record: ProgressRecord, world_size: int) -> None:
    """Wrap the process groups of `c10d` (torch.distributed.distributed_c10d), once, in this process alone."""
    for name, kind in _KINDS.items():
        original = getattr(c10d.ProcessGroup, name, None)
        if original is not None and not hasattr(original, "__wrapped__"):
            entering = _entering(original, record, COLLECTIVES.index(kind), world_size)
            setattr(c10d.ProcessGroup, name, entering)
    if not hasattr(c10d.Work.wait, "__wrapped__"):
        c10d.Work.wait = _waiting(c10d.Work.wait)


def _entering(original: Callable[..., Any], record: ProgressRecord, kind: int, world_size: int) -> Callable[..., Any]:
    pid = os.getpid()

    @functools.wraps(original)
    def enter(group: Any, *args: Any, **kwargs: Any) -> Any:
        if group.size() == world_size and os.getpid() == pid:  # a forked worker has a world of its own
            global _entered
            _entered += 1
            record.entered(_entered, kind)
        return original(group, *args, **kwargs)

    return enter


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        global _waited_ns
        began = time.monotonic_ns()
        try:
            return original(work, *args, **kwargs)
        finally:
            _waited_ns += time.monotonic_ns() - began

    return wait
