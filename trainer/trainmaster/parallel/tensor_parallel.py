"""Tensor parallelism: matrices are split (Shoeybi et al., arXiv 1909.08053), and the tensors between them are divided
along the sequence (Korthikanti et al., arXiv 2205.05198).

A submodule computes with its own part of each parameter as a plain tensor: it gets a class of its own, whose `forward`
replaces the parameters by these parts and communicates before or after. The parameters themselves are DTensors, so that
checkpoints, sharding and the gradient norm know which part of the whole they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from trainmaster.contract.config import TensorConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel.collectives import Group, all_gather, copied, gathered, scattered_sum, summed
from trainmaster.parallel.model_plan import Role, named, plan_of, replace_forward

Forward = Callable[..., Any]
SEQUENCE = 1  # the dimension of x [B, T, W]

EXPERT_SPLITS: dict[str, Placement] = {"gate": Shard(1), "up": Shard(1), "down": Shard(2)}
"""How the weights of `models.experts.Experts`, [E, F, W] and [E, W, F], are split."""
_SPLITS: dict[str, dict[str, Placement]] = {
    "vocabulary": {"weight": Shard(0)},
    "column": {"weight": Shard(0), "bias": Shard(0)},
    "head": {"weight": Shard(0), "bias": Shard(0)},
    "row": {"weight": Shard(1)},
    "experts": EXPERT_SPLITS,
}


def apply(model: nn.Module, mesh: DeviceMesh, config: TensorConfig) -> nn.Module:
    """Split `model` over the one-dimensional `mesh` as its plan says, and return it. Other submodules stay whole.

    Raises ConfigError if the model's plan names nothing to split, or a size cannot be divided, or modules that share a
    parameter would split it in different ways.
    """
    plan = plan_of(model)
    if not plan.tensor:
        raise ConfigError(
            f"parallelism.tp: model {type(model).__name__} declares no plan for tensor parallelism (plan.tensor); "
            f"only tp 1 would do"
        )
    roles = {path: role for pattern, role in plan.tensor.items() for path, _ in named(model, pattern)}
    split = Split(
        mesh.get_group(), config, [path for path, role in roles.items() if role in ("region", "summed_region")]
    )
    known: dict[nn.Parameter, nn.Parameter] = {}  # modules that shared a parameter share its part
    for path, module in list(model.named_modules()):
        role: Role | None = roles.get(path)
        for name, parameter in list(module._parameters.items()):
            # Experts that were dealt out are split already.
            if parameter is not None and not isinstance(parameter.data, DTensor):
                placement, full = placement_of(role, name), f"{path}.{name}"
                part = known.setdefault(parameter, dealt(parameter, mesh, [placement], full))
                if part.placements != (placement,):
                    raise ConfigError(
                        f"parallelism.tp: {full} is a parameter that another module has, too, and plan.tensor splits "
                        f"it there in another way; give both modules roles that split it alike, or use tp 1"
                    )
                module._parameters[name] = part
        rebase(module, split.forward(path, role, type(module)), split.view(role))
    return model


def placement_of(role: Role | None, name: str) -> Placement:
    """Return the placement of the parameter `name` of a module with this role."""
    return _SPLITS.get(role or "", {}).get(name, Replicate())


class Split:
    """How the modules of each role compute. `regions` has the paths of the modules with role region or
    summed_region."""

    def __init__(self, group: Group, config: TensorConfig, regions: list[str]) -> None:
        self.group, self.sequence, self.vocabulary = group, config.sequence, config.vocabulary
        self.regions = regions

    def forward(self, path: str, role: Role | None, cls: type[nn.Module]) -> Forward:
        """Return the function that replaces the `forward` of a module. It sees this rank's parts of the parameters."""
        inner: Forward = cls.forward
        if role == "summed_region":
            return _entering(inner, self.enter, self.leave)
        if role == "region" or role == "head":
            leave = self._whole_logits if role == "head" and not self.vocabulary else None
            return _entering(inner, self.enter, leave)
        if role == "column":
            in_region = any(path.startswith(f"{region}.") for region in self.regions)
            return inner if in_region else _entering(inner, self.enter)
        return {"row": self._row, "vocabulary": self._embedding, "positions": self._positions}.get(role or "", inner)

    def view(self, role: Role | None) -> Callable[[Tensor], Tensor]:
        """Return a function that returns, for a parameter of a module with this role, the tensor to compute with."""
        # A whole parameter that works on other tokens on each rank, or on other heads: its gradients are summed.
        if role == "partial" or (role in ("norm", "positions") and self.sequence):
            return lambda parameter: copied(local(parameter), self.group)
        return local

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of split matrices from the stream x [B, T, W]."""
        return gathered(x, SEQUENCE, self.group) if self.sequence else copied(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Return the stream from x, this rank's summand of it."""
        return scattered_sum(x, SEQUENCE, self.group) if self.sequence else summed(x, self.group)

    def _row(self, module: nn.Linear, x: Tensor) -> Tensor:
        y = self.leave(F.linear(x, module.weight))
        # Once, not once per rank. On slices of the sequence each rank has a part of its gradient.
        if module.bias is None:
            return y
        return y + (copied(module.bias, self.group) if self.sequence else module.bias)

    def _embedding(self, module: nn.Embedding, tokens: Tensor) -> Tensor:
        rows = module.weight.shape[0]
        first = self.group.rank() * rows
        own = tokens - first
        is_own = (own >= 0) & (own < rows)
        padding = getattr(module, "padding_idx", None)  # a token whose row gets no gradient
        padding = padding - first if padding is not None and first <= padding < first + rows else None
        return self.leave(F.embedding(own.clamp(0, rows - 1), module.weight, padding) * is_own.unsqueeze(-1))

    def _positions(self, module: Any, x: Tensor) -> Tensor:
        return module.at(x, self.group.rank() * x.shape[SEQUENCE] if self.sequence else 0)

    def _whole_logits(self, logits: Tensor) -> Tensor:
        # The loss is the same on all ranks, so each takes its own part of the gradient.
        return _Joined.apply(logits, self.group)


def local(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter as a plain tensor, with autograd."""
    return _Local.apply(parameter) if isinstance(parameter, DTensor) else parameter


class _Local(torch.autograd.Function):  # type: ignore[misc]
    """`to_local()` without the comparison of strides and placements in its backward pass.

    This comparison takes an eighth of a small step. Here, gradients have the placements of their parameters.
    """

    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> Tensor:
        part = parameter._local_tensor
        ctx.spec = parameter._spec
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> DTensor:
        return DTensor(grad.contiguous(), ctx.spec, requires_grad=False)


class _Joined(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.width = group, x.shape[-1]
        return all_gather(x, x.dim() - 1, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.narrow(-1, ctx.group.rank() * ctx.width, ctx.width), None


def _entering(
    inner: Forward, enter: Callable[[Tensor], Tensor], leave: Callable[[Tensor], Tensor] | None = None
) -> Forward:
    def forward(module: nn.Module, x: Tensor, *rest: Any) -> Any:
        y = inner(module, enter(x), *rest)
        return y if leave is None else leave(y)

    return forward


def rebase(module: nn.Module, inner: Forward, view: Callable[[Tensor], Tensor]) -> None:
    """Give a module a class of its own, whose `forward` is `inner` with views of the parameters in their place."""
    cls = type(module)
    forward = inner

    def with_views(module: nn.Module, *inputs: Any) -> Any:
        parameters = module._parameters
        # Not by assignment, which is for users.
        module.__dict__["_parameters"] = {k: None if p is None else view(p) for k, p in parameters.items()}
        try:
            return inner(module, *inputs)
        finally:
            module.__dict__["_parameters"] = parameters

    if any(parameter is not None for parameter in module._parameters.values()):
        forward = with_views
    if forward is not cls.forward:
        replace_forward(module, forward)


def dealt(parameter: nn.Parameter, mesh: DeviceMesh, placements: Sequence[Placement], path: str) -> nn.Parameter:
    """Return a parameter as a DTensor with one placement per axis of `mesh`.

    It needs no communication, because all ranks start with the same whole parameter. Raises ConfigError if a size
    cannot be divided.
    """
    assert mesh.mesh_dim_names is not None
    part = parameter.data
    for i, (axis, placement) in enumerate(zip(mesh.mesh_dim_names, placements, strict=True)):
        if isinstance(placement, Shard):
            n, size = mesh.size(i), part.shape[placement.dim]
            if size % n:
                raise ConfigError(
                    f"parallelism.{axis} {n} doesn't divide dimension {placement.dim} of {path}, which is {size}"
                )
            part = part.narrow(placement.dim, mesh.get_local_rank(axis) * size // n, size // n)
    if part.numel() < parameter.numel():
        # A part of its own: a view would keep the whole in memory.
        part = part.clone(memory_format=torch.contiguous_format)
    whole = DTensor.from_local(
        part, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return nn.Parameter(whole, requires_grad=parameter.requires_grad)
