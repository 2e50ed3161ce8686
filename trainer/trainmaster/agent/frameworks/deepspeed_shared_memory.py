"""The memory through which DeepSpeed's ranks of one pod exchange tensors on CPUs, 66 MiB for each rank.

It is a file in /dev/shm that DeepSpeed never removes, so each round would leave its files behind until the pod ends.
Here its rank removes it as soon as all ranks have opened it. They keep the memory, and the kernel frees it with the
last of them, also when they are killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster.agent.frameworks.framework import Watch

SHARED_MEMORY = Path("/dev/shm")


def remove_opened_files(module: Any, watch: Watch) -> None:
    """Let the backend of `deepspeed.comm.torch` remove its rank's file once it is initialized."""
    original = module.TorchBackend.__init__

    @functools.wraps(original)
    def init(backend: Any, *args: Any, **given: Any) -> None:
        original(backend, *args, **given)
        if getattr(backend, "shm_comm_op", None) is None:
            return
        path = SHARED_MEMORY / _name(os.environ, backend.get_rank())
        # A rank has the file if and only if all have theirs, so each of them comes to the barrier.
        if path.exists():
            backend.barrier()
            with contextlib.suppress(OSError):
                path.unlink()

    module.TorchBackend.__init__ = init


def _name(env: Mapping[str, str], rank: int) -> str:
    """Return the name that DeepSpeed's csrc/cpu/comm/shm.cpp gives the file. The port is that of the round's store."""
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    return f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
