"""The initial weights of a job's model, drawn only if no checkpoint replaces them.

A rank builds its model without them. Whether there is a checkpoint is known when all ranks have agreed on it, which is
after the model was divided among them. So the weights are drawn then, and each rank takes its part of each parameter.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainmaster.checkpoint.state import capture
from trainmaster.models.initialization import Stds, drawn


class InitialWeights:
    """The parameters of a model that have no values yet. `undrawn` has the standard deviations by name (see
    `models.build_undrawn`)."""

    def __init__(self, undrawn: Stds, seed: int) -> None:
        self._undrawn, self._seed = undrawn, seed

    def draw(self, model: nn.Module, restored: Container[str] = ()) -> set[str]:
        """Set this rank's part of each parameter without values, except those in `restored`. Return their names.

        `model` is the model that `models.build_undrawn` returned, divided among ranks or not. After the call, none of
        its parameters is without values.
        """
        names = capture.parameter_names({"": model})
        named = ((names[id(parameter)].removeprefix("."), parameter) for parameter in model.parameters())
        needed = {name: p for name, p in named if name in self._undrawn and name not in restored}
        with torch.no_grad():
            for name, whole in drawn(needed, self._undrawn, self._seed, _memory):
                set_part(needed[name], whole)
        self._undrawn = {}
        return set(needed)


def set_part(parameter: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of `whole` to a parameter. Nothing is sent to other ranks."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    (block,) = capture.blocks(parameter)
    part = whole[tuple(slice(at, at + size) for at, size in zip(block.offsets, block.sizes, strict=True))]
    local = parameter.to_local()
    assert part.shape == local.shape, f"a part of {list(part.shape)} isn't this rank's, {list(local.shape)}"
    local.copy_(part)


def _memory(parameter: Tensor) -> Tensor:
    """Return the tensor in which a whole parameter is drawn: the parameter itself where that is possible."""
    if not isinstance(parameter, DTensor) and parameter.device.type == "cpu" and parameter.is_contiguous():
        return parameter.detach()
    return torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
