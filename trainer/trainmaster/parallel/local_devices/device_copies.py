"""Copies of a model on several devices of one process: data parallelism without ranks.

The parameters are on the first device. In each forward pass they are copied to the other devices. In the backward pass
their gradients are copied back and summed in the order of the devices, so that a step has the same bits each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trainmaster.parallel.forward_rng import seed_copies
from trainmaster.parallel.model_plan import named, plan_of


class Copies:
    """A model whose parameters are on the first of the devices, and which computes on all of them."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        self.model, self.devices = model.to(devices[0]), list(devices)
        self._auxiliary: list[Any] = [module for _, module in named(model, plan_of(model).auxiliary)]

    def parts(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield the parts of a batch [B, …] along B, each on its device. Later parts may be smaller, or empty."""
        for part, device in zip(batch.tensor_split(len(self.devices)), self.devices, strict=True):
            yield part.to(device, non_blocking=True)

    def outputs(self, batch: Tensor) -> list[Tensor]:
        """Return the model's output for the part of each device, on that device.

        In the backward pass, gradients are added to the parameters on the first device.
        """
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        buffers = dict(self.model.named_buffers())
        sent_to = [_Sent.apply(parameter, self.devices[1:]) for parameter in parameters]
        found = []
        if torch.is_grad_enabled():
            seed_copies(self.devices)
        for index, (part, device) in enumerate(zip(self.parts(batch), self.devices, strict=True)):
            self._set_share(len(part) / max(1, len(batch)))
            if index == 0:
                found.append(self.model(part))
                continue
            own = dict(zip(names, (sent[index - 1] for sent in sent_to), strict=True))
            own.update({name: buffer.to(device) for name, buffer in buffers.items()})
            found.append(functional_call(self.model, own, (part,)))
        self._set_share(1.0)
        return found

    def _set_share(self, share: float) -> None:
        for module in self._auxiliary:
            module.share = share


class _Sent(torch.autograd.Function):  # type: ignore[misc]
    """Copies of a parameter on other devices. In the backward pass, their gradients are summed in the order of the
    devices."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, devices: Sequence[torch.device]) -> tuple[Tensor, ...]:
        ctx.home = parameter.device
        ctx.set_materialize_grads(False)
        return tuple(parameter.detach().to(device, copy=True, non_blocking=True) for device in devices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        total = None
        for gradient in gradients:
            if gradient is not None:
                arrived = gradient.to(ctx.home, non_blocking=True)
                total = arrived if total is None else total + arrived
        return total, None
