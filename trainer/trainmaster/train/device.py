"""The device that a rank of our own loop computes on: one device of the node for each local rank, or the CPU for
all."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from trainmaster.contract.config import Device
from trainmaster.errors import ConfigError


@dataclass(frozen=True)
class Choice:
    """A device. `words` says why ranks compute on the CPU although the node has devices, and is "" otherwise."""

    device: torch.device
    words: str = ""


def choose(asked: Device, local_rank: int, ranks: int, *, cuda: int, mps: bool) -> Choice:
    """Return the device of a rank. All ranks of a node get the same kind, because it depends on facts that they share.

    `ranks` is the number of ranks of the node, `cuda` the number of CUDA devices that they see, and `mps` says whether
    there is an MPS device. Raises ConfigError if there is no device of the kind that was asked for.
    """
    if asked == "CPU":
        return Choice(torch.device("cpu"))
    if asked == "MPS":
        why = "this machine has no such device" if not mps else "losses are summed in float64, which MPS does not have"
        raise ConfigError(f"training.device: MPS cannot be used, because {why}; use CPU")
    if cuda >= ranks:
        return Choice(torch.device("cuda", local_rank))
    has = f"this node has {_count(cuda, 'CUDA device')} for {_count(ranks, 'rank')}"
    if asked == "CUDA":
        raise ConfigError(f"training.device: CUDA needs a device for each rank, and {has}; Auto or CPU would do")
    return Choice(
        torch.device("cpu"), f"{has}, so all ranks compute on the CPU (training.device: Auto)" if cuda else ""
    )


def of_this_rank(asked: Device) -> Choice:
    """Return the device of this rank, and make it torch's current device. Raises ConfigError as `choose` does."""
    local_rank = int(os.environ.get("LOCAL_RANK") or 0)
    ranks = max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), local_rank + 1)
    cuda = torch.cuda.device_count() if asked != "CPU" and torch.cuda.is_available() else 0
    choice = choose(asked, local_rank, ranks, cuda=cuda, mps=torch.backends.mps.is_available())
    if choice.device.type == "cuda":
        torch.cuda.set_device(choice.device)
    return choice


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
