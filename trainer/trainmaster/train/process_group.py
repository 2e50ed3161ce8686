"""How a rank joins the others: the process group, its device, and the store that all ranks share."""

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
"""Limit of a collective on CPU after the first step: gloo can't be aborted, so only the limit frees a rank."""


@dataclass(frozen=True)
class World:
    """The world that this rank has joined."""

    rank: int
    size: int
    device: torch.device
    store: Any  # a torch store, this job's own for the life of the process group
    words: str = ""  # why it has no device although its node has some

    @classmethod
    def join(cls, asked: Device) -> World:
        """Join the process group that torchrun's environment variables describe, or a world of one rank without them.

        `asked` is the kind of device. Raises ConfigError if there is no such device, or no address for a world of
        several ranks.
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
        """Shorten the limits of collectives. After the first step, none waits for imports, compilation or loading."""
        if self.device.type == "cpu":
            # Public since torch 2.14.
            set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
            set_timeout(STEP_TIMEOUT, None)


def shared_store() -> Any:
    """Return the store of the default process group with a prefix of ours, or a private store without a process
    group."""
    if dist.is_initialized():
        return dist.PrefixStore("trainmaster", dist.distributed_c10d._get_default_store())
    return dist.HashStore()
