"""This rank's part of a tensor that is divided among ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory and outside of autograd."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
