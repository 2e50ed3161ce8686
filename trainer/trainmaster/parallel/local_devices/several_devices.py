"""A model on several devices of one process: the result of `tm.parallelize(…, devices=…)`, without ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trainmaster.errors import ConfigError
from trainmaster.parallel.local_devices import device_layers
from trainmaster.parallel.local_devices.device_copies import Copies
from trainmaster.parallel.loss import cross_entropy
from trainmaster.parallel.model_plan import check, named, plan_of


class Devices:
    """A model on several devices of this process, with the methods of `Parallel`. This process has the whole batch."""

    def __init__(self, model: nn.Module, copies: Copies | None) -> None:
        self.model = model
        self._copies = copies
        self._auxiliary = [module for _, module in named(model, plan_of(model).auxiliary)]

    def own(self, x: Tensor) -> Tensor:
        """Return x: there are no other ranks to share it with."""
        return x

    def forward(self, tokens: Tensor, divisor: float | None = None) -> Tensor:
        """Return the model's output for tokens [B, T], on one of the devices.

        `divisor`: the number of tokens of the step, by which losses that the model itself adds (`Plan.auxiliary`) are
        divided. Without it, they are means over the tokens of this pass.
        """
        self._divide_auxiliary(divisor)
        outputs = self._outputs(tokens)
        return torch.cat([output.to(outputs[0].device) for output in outputs])

    def forward_backward(self, batches: Iterable[tuple[Tensor, Tensor]], count: int, divisor: float) -> Tensor:
        """Compute the forward and backward passes of a step, and return its loss, a scalar.

        `batches` are micro-batches of (tokens, targets). `divisor` is the number of tokens of the step that count.
        Gradients are sums over the micro-batches.
        """
        self._divide_auxiliary(divisor)
        home = next(self.model.parameters()).device
        total = torch.zeros((), device=home)
        for tokens, targets in batches:
            outputs = self._outputs(tokens)
            parts = [targets] if self._copies is None else self._copies.parts(targets)
            losses = [
                cross_entropy(output, part.to(output.device)) for output, part in zip(outputs, parts, strict=True)
            ]
            loss = torch.stack([loss.to(home) for loss in losses]).sum() / divisor
            loss.backward()
            total += loss.detach()
        self._divide_auxiliary(None)
        return total

    def _divide_auxiliary(self, divisor: float | None) -> None:
        for module in self._auxiliary:
            module.scale = None if divisor is None else 1 / divisor

    def _outputs(self, tokens: Tensor) -> list[Tensor]:
        return [self.model(tokens)] if self._copies is None else self._copies.outputs(tokens)


def over_devices(model: nn.Module, degrees: Mapping[str, int], devices: Sequence[torch.device], time: int) -> Devices:
    """Divide `model` in place over devices, by `degrees` of pp (its layers) or of dpReplicate (its batch).

    Return the result. Raises ConfigError if a device does not exist, or the model's plan does not allow it.
    """
    check(model)
    for device in devices:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"devices: there is no {device} here: {str(error).splitlines()[0]}") from None
    if degrees.get("pp", 1) > 1:
        device_layers.apply(model, devices, device_layers.BALANCE, time)
        return Devices(model, None)
    return Devices(model, Copies(model, devices))
