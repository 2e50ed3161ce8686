"""Muon: the update of a matrix is its momentum made orthogonal, so that all its directions get updates of equal size.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). The scale of an update is that of Liu
et al., "Muon is Scalable for LLM Training" (arXiv 2502.16982): its root mean square equals that of AdamW, which trains
all other parameters. So both use the same learning rate and weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainmaster.errors import ConfigError
from trainmaster.optim.whole_matrices import Hop, batches, hops, on_wholes
from trainmaster.parallel.model_plan import named, plan_of

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients of a polynomial that maps singular values in (0, 1] to about 1. It is steep at 0, so that five
iterations are enough."""

ITERATIONS = 5
RMS = 0.2  # of AdamW's updates, as they are mostly
EPS = 1e-7


@dataclass(frozen=True)
class Matrix:
    """A parameter of the blocks. If `stacked`, dim 0 counts matrices (experts); otherwise the dims after dim 0 are one
    row."""

    shard: nn.Parameter  # what this rank has of it, plain
    whole: tuple[int, ...]
    stacked: bool
    hops: tuple[Hop, ...]  # over which a whole is joined from what ranks have

    @property
    def scale(self) -> float:
        """Return the scale of an orthogonal update, whose root mean square is 1 / sqrt(max(rows, columns))."""
        *_, rows, columns = self.whole if self.stacked else (self.whole[0], math.prod(self.whole[1:]))
        return RMS * math.sqrt(max(rows, columns))


def matrices(model: nn.Module, shards: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> list[Matrix]:
    """Return the matrices of the model's blocks.

    `shards` has (the model's parameter, this rank's part of it) for each parameter. Raises ConfigError if the model's
    plan names no blocks.
    """
    plan = plan_of(model)
    if not plan.blocks:
        raise ConfigError(
            f"optimizer.name: muon is for the matrices of blocks, and model {type(model).__name__} declares no blocks "
            f"(plan.blocks); adamw would do"
        )
    own = {id(parameter) for name, parameter in model.named_parameters() if name.startswith(f"{plan.blocks}.")}
    stacked = {id(p) for _, module in named(model, plan.experts) for p in module.parameters(recurse=False)}
    found = []
    for parameter, shard in shards:
        if id(parameter) in own and parameter.dim() >= 2:
            is_stack = id(parameter) in stacked and parameter.dim() == 3
            joined = tuple(hops(parameter, apart=0 if is_stack else None))
            found.append(Matrix(shard, tuple(parameter.shape), is_stack, joined))
    return found


def orthogonalized(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the matrices x [..., N, M] with singular values of about 1 (0.7 to 1.2), computed in `dtype`.

    It is the iteration of Newton and Schulz. The singular vectors do not change, because each step is an odd polynomial
    of the matrix.
    """
    a, b, c = COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x).to(dtype)
    y = y / torch.linalg.matrix_norm(y, keepdim=True).clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return (y.mT if tall else y).to(x.dtype)


class Muon(torch.optim.AdamW):  # type: ignore[misc]
    """Muon for matrices, and AdamW for all other parameters.

    A matrix of which this rank has a part is orthogonalized as a whole, which needs the ranks that have the other
    parts. This is done in `orthogonalize`, before `step`, which needs no other rank.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        matrices: Sequence[Matrix],
        momentum: float,
        dtype: torch.dtype,
        **adamw: Any,
    ) -> None:
        """`groups` have all parameters. `dtype` is used to orthogonalize."""
        super().__init__(groups, **adamw, fused=True)
        self.matrices, self.momentum, self.dtype = matrices, momentum, dtype
        self._found: dict[int, Tensor] = {}  # updates of joined matrices, until the step

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def orthogonalize(self, gradient: Callable[[nn.Parameter], Tensor | None], factor: Tensor | None) -> None:
        """Compute the updates of the matrices that are divided among ranks. All of these ranks must call it.

        `gradient` returns the gradient of this rank's part, which `factor` will scale before the step. Neither the
        gradient nor the state is changed here, because the step may be dropped.
        """

        def wanted(matrix: Matrix) -> Tensor:
            own = gradient(matrix.shard)
            if own is None:
                own = torch.zeros_like(matrix.shard)
            own = own if factor is None else own * factor
            return own.lerp(self._followed(matrix, own), self.momentum)

        self._found.clear()
        for batch in batches([matrix for matrix in self.matrices if matrix.hops], lambda m: (m.whole, m.hops)):
            first = batch[0]
            parts = on_wholes(
                [wanted(matrix) for matrix in batch], first.hops, partial(self._orthogonalized, stacked=first.stacked)
            )
            self._found.update((id(matrix.shard), part) for matrix, part in zip(batch, parts, strict=True))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Apply the gradients, as torch's AdamW does. If `found_inf` says that the step is dropped, nothing changes."""
        assert closure is None
        gradients = [matrix.shard.grad for matrix in self.matrices]
        for matrix in self.matrices:
            matrix.shard.grad = None  # AdamW passes by what has none
        super().step()
        options = {id(p): group for group in self.param_groups for p in group["params"]}
        for matrix, gradient in zip(self.matrices, gradients, strict=True):
            if gradient is not None:
                self._move(matrix, gradient, options[id(matrix.shard)])
        self._found.clear()

    def _move(self, matrix: Matrix, gradient: Tensor, options: dict[str, Any]) -> None:
        shard, rate = matrix.shard, options["lr"]
        followed = self._followed(matrix, gradient)
        update = self._found.get(id(shard))
        if update is None:
            assert not matrix.hops, "a matrix in parts is orthogonalized before the step"
            update = self._orthogonalized(gradient.lerp(followed, self.momentum), matrix.stacked)
        moved = (shard * (1 - rate * options["weight_decay"])).sub_(update, alpha=rate * matrix.scale)
        if "momentum_buffer" not in self.state[shard]:
            self.state[shard] = {"momentum_buffer": torch.zeros_like(shard)}  # what AdamW had before goes
        before, dropped = self.state[shard]["momentum_buffer"], getattr(self, "found_inf", None)
        if dropped is not None:
            followed = torch.where(dropped.bool(), before, followed)
            moved = torch.where(dropped.bool(), shard, moved)
        before.copy_(followed)
        shard.copy_(moved)

    def _followed(self, matrix: Matrix, gradient: Tensor) -> Tensor:
        """Return the momentum of a matrix after this gradient."""
        share = 1 - self.momentum
        momentum: Tensor | None = self.state[matrix.shard].get("momentum_buffer")
        return gradient * share if momentum is None else momentum.lerp(gradient, share)

    def _orthogonalized(self, x: Tensor, stacked: bool) -> Tensor:
        return orthogonalized(x if stacked else x.flatten(1), self.dtype).view(x.shape)
