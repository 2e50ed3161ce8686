"""How a rank joins the others: the process group, its device, the store that all ranks share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainmaster.contract.config import Device
from trainmaster.errors import ConfigError
from trainmaster.train import device

START_TIMEOUT = timedelta(minutes=10)
STEP_TIMEOUT = timedelta(seconds=60)
"""Of a collective on CPU once all ranks have stepped: gloo can't be aborted, so the limit is what frees a rank."""


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device
    store: Any  # a torch store, this job's own for the life of the process group
    words: str = ""  # why it has no device although its node has some

    @classmethod
    def join(cls, asked: Device) -> World:
        """Rendezvous by the environment (torchrun's variables); alone without it. asked: the kind of device.

        Raises ConfigError if there is no such device, or nobody to meet.
        """
        size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        choice = device.of_this_rank(asked)
        backend = "cpu:gloo,cuda:nccl" if choice.device.type == "cuda" else "gloo"
        if "MASTER_ADDR" in os.environ:
            dist.init_process_group(backend, timeout=START_TIMEOUT)
        elif size == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            raise ConfigError(
                f"WORLD_SIZE is {size}, but MASTER_ADDR is not set: start the ranks with an agent or torchrun"
            )
        return cls(rank, size, choice.device, shared_store(), choice.words)

    def shorten_timeouts(self) -> None:
        """After the first step no collective waits for imports, compilation or loading any more."""
        if self.device.type == "cpu":
            # Public since torch 2.14.
            set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
            set_timeout(STEP_TIMEOUT, None)


def shared_store() -> Any:
    """The default process group's store under a prefix of ours; a private one without a process group."""
    if dist.is_initialized():
        return dist.PrefixStore("trainmaster", dist.distributed_c10d._get_default_store())
    return dist.HashStore()
