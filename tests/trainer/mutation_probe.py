"""Each strategy broken on purpose: `test_mutations.py` calls it, where ranks can be forked, to see that rows fail."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from tests.trainer.parity_probe import FEW_STEPS, references
from trainmaster import parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.optim import muon
from trainmaster.parallel import (
    collectives,
    context_parallel,
    expert_parallel,
    forward_and_backward,
    gradient_norm,
    gradient_reduction,
    loss,
    mesh,
    tensor_parallel,
)
from trainmaster.parallel.local_devices import device_copies, device_layers
from trainmaster.parallel.stages import pipeline
from trainmaster.reduce import counted_collectives
from trainmaster.tools import parity
from trainmaster.tools.parity import Outcome, Row

BREAK: dict[str, tuple[Row, Callable[[], None]]] = {}


def mutation(row: Row) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Of a row; the function breaks something in the process of one rank."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        assert function.__doc__
        BREAK[function.__doc__] = (row, function)
        return function

    return register


REPLICATE = Row("P1", {"dpReplicate": 2})
ACCUMULATE = Row("P1", {"dpReplicate": 2}, 2)
SHARD = Row("P2", {"dpShard": 2}, 2)
HSDP = Row("P2", {"dpReplicate": 2, "dpShard": 2}, 2)
LAYERS = Row("P3", {"pp": 2}, 1, devices=2)
REPLICAS = Row("P3", {"dpReplicate": 3}, 1, devices=3)
TENSOR = Row("P4", {"tp": 2}, 1)
PLAIN_TENSOR = Row("P4", {"tp": 2, "tensor": {"sequence": False, "vocabulary": False}}, 1)
PIPELINE = Row("P5", {"pp": 2}, 4)
CONTEXT = Row("P6", {"cp": 2}, 1)
ULYSSES = Row("P6", {"cp": 2, "context": {"method": "Ulysses"}}, 1)
EXPERT = Row("P7", {"dpShard": 2, "ep": 2}, 1, "moe")
EXPERT_CONTEXT = Row("P7", {"cp": 2, "ep": 2}, 1, "moe")
EXPERT_TENSOR = Row("P7", {"tp": 2}, 1, "moe")
EVERYTHING = {"communication": {"compression": {"method": "TopK", "share": 1}}}
COMPRESSED = Row("E7", {"dpReplicate": 2}, 1, training=EVERYTHING)
COMPRESSED_SHARDS = Row("E7", {"dpReplicate": 2, "dpShard": 2}, 1, training=EVERYTHING)
MUON = Row("E8", {"dpShard": 2}, 1, training={"optimizer": {"name": "muon", "lr": 0.02}}, update=5e-4)


@mutation(REPLICATE)
def _() -> None:
    """replicate: gradients scaled by 1.01"""
    whole = forward_and_backward.Parallel.forward_backward

    def forward_backward(self: Any, batches: Any, count: int, divisor: float) -> torch.Tensor:
        total = whole(self, batches, count, divisor)
        parallel.scale_gradients_(self.model, 1.01)
        return total

    forward_and_backward.Parallel.forward_backward = forward_backward  # type: ignore[method-assign]


@mutation(REPLICATE)
def _() -> None:
    """replicate: gradients are never reduced"""
    gradient_reduction.GradientSync.before = lambda self, last: setattr(  # type: ignore[method-assign]
        self.replicas, "on", False
    )


@mutation(REPLICATE)
def _() -> None:
    """replicate: the norm counts each replica"""
    whole = parallel.gradient_norm_squared

    def norm_squared(model: torch.nn.Module) -> torch.Tensor:
        model.counts = True  # type: ignore[assignment]
        return whole(model)

    parallel.gradient_norm_squared = norm_squared


@mutation(ACCUMULATE)
def _() -> None:
    """replicate: each micro-batch is the first one"""
    mesh.Mesh.data_rank = property(lambda self: 0)  # type: ignore[method-assign]


@mutation(SHARD)
def _() -> None:
    """shard: the sampler is shifted by one rank's share"""
    mesh.Mesh.data_rank = property(lambda self: self.coordinates["dpShard"] + 1)  # type: ignore[method-assign]


@mutation(SHARD)
def _() -> None:
    """shard: gradients are averages"""
    sums = FSDPModule.set_gradient_divide_factor
    FSDPModule.set_gradient_divide_factor = lambda self, factor: sums(self, 2.0)


@mutation(SHARD)
def _() -> None:
    """shard: a rank's own part is all that it gets of the sums"""

    def reduce_scatter_(own: torch.Tensor, parts: torch.Tensor, group: Any) -> None:
        own.view(-1).copy_(parts.view(group.size(), -1)[group.rank()])

    collectives.reduce_scatter_ = reduce_scatter_


@mutation(HSDP)
def _() -> None:
    """HSDP: replicas don't reduce"""
    FSDPModule.set_requires_all_reduce = lambda self, on, recurse=True: [
        setattr(part._get_fsdp_state()._fsdp_param_group, "all_reduce_grads", False)
        for part in self.modules()
        if isinstance(part, FSDPModule) and part._get_fsdp_state()._fsdp_param_group
    ]


@mutation(HSDP)
def _() -> None:
    """HSDP: the norm counts each replica"""
    gradient_norm._weight = lambda gradient: 1.0


@mutation(PLAIN_TENSOR)
def _() -> None:
    """tensor: the gradients of a region's input are not summed"""
    collectives._Copied.backward = staticmethod(lambda ctx, grad: (grad, None))


@mutation(PLAIN_TENSOR)
def _() -> None:
    """tensor: the outputs of split rows are not summed"""
    tensor_parallel.summed = lambda x, group: x


@mutation(LAYERS)
def _() -> None:
    """layers: gradients that don't come back from the next device"""
    bring = device_layers._bring_inputs

    def bring_inputs(module: torch.nn.Module, device: torch.device) -> None:
        bring(module, device)
        module.register_forward_pre_hook(lambda module, inputs: (inputs[0].detach(), *inputs[1:]))

    device_layers._bring_inputs = bring_inputs


@mutation(REPLICAS)
def _() -> None:
    """copies: the gradients of one of three devices are lost"""
    backward = device_copies._Sent.backward
    device_copies._Sent.backward = staticmethod(lambda ctx, *gradients: backward(ctx, *gradients[:1]))


@mutation(REPLICAS)
def _() -> None:
    """copies: weights that were sent once and never again"""
    sent: dict[int, Any] = {}
    forward = device_copies._Sent.forward

    def once(ctx: Any, parameter: torch.Tensor, devices: Any) -> Any:
        found = forward(ctx, parameter, devices)
        return tuple(copy.clone() for copy in sent.setdefault(id(parameter), found))

    device_copies._Sent.forward = staticmethod(once)


@mutation(TENSOR)
def _() -> None:
    """sequence: gradients of norms are those of a slice"""
    tensor_parallel.Split.view = lambda self, role: tensor_parallel.local  # type: ignore[method-assign]


@mutation(TENSOR)
def _() -> None:
    """vocabulary: the sum of exponentials is that of a part"""
    loss.all_reduce_ = lambda x, group=None, highest=False: None


@mutation(PIPELINE)
def _() -> None:
    """pipeline: gradients are divided by micro-batches"""
    for name, schedule in pipeline.SCHEDULES.items():
        pipeline.SCHEDULES[name] = lambda *a, schedule=schedule, **o: schedule(*a, **{**o, "scale_grads": True})


@mutation(PIPELINE)
def _() -> None:
    """pipeline: one stage is not clipped"""
    whole = parallel.scale_gradients_

    def scale(model: torch.nn.Module, factor: Any) -> None:
        if dist.get_rank() == 0:
            whole(model, factor)

    parallel.scale_gradients_ = scale


@mutation(PIPELINE)
def _() -> None:
    """pipeline: the loss counts one micro-batch less"""
    pipeline.torch = _Without("stack", lambda parts: torch.stack(parts[1:]), torch)  # type: ignore[assignment]


@mutation(CONTEXT)
def _() -> None:
    """context: positions are those of a contiguous part"""
    forward_and_backward.Parallel.forward = lambda self, tokens, divisor: self.model(tokens)  # type: ignore[method-assign]


@mutation(CONTEXT)
def _() -> None:
    """context: keys stay in the order of the ranks"""
    context_parallel.Chunks.in_sequence = lambda self, x, dim: x  # type: ignore[method-assign]


@mutation(CONTEXT)
def _() -> None:
    """context: gradients of gathered keys are not summed"""
    collectives._Gathered.backward = staticmethod(
        lambda ctx, grad: (grad.chunk(ctx.group.size(), ctx.dim)[ctx.group.rank()].contiguous(), None, None)
    )


@mutation(ULYSSES)
def _() -> None:
    """Ulysses: heads come back in the order of the sequence"""
    context_parallel.Chunks.by_rank = lambda self, x, dim: x  # type: ignore[method-assign]


@mutation(EXPERT)
def _() -> None:
    """expert: no gradient travels back"""
    expert_parallel._Travelled.backward = staticmethod(
        lambda ctx, grad: (grad.new_zeros(sum(ctx.leaving), grad.shape[1]), None, None, None)
    )


@mutation(EXPERT)
def _() -> None:
    """expert: gradients of experts are counted for each rank"""
    whole = expert_parallel._Travelled.backward
    expert_parallel._Travelled.backward = staticmethod(lambda ctx, grad: (whole(ctx, grad)[0] * 2, None, None, None))


@mutation(EXPERT_CONTEXT)
def _() -> None:
    """expert: the balance counts a part of the sequence"""
    context_parallel.all_reduce = lambda x, group: x


@mutation(EXPERT_TENSOR)
def _() -> None:
    """expert: the router learns from one rank's part"""
    view = tensor_parallel.Split.view
    tensor_parallel.Split.view = (  # type: ignore[method-assign]
        lambda self, role: tensor_parallel.local if role == "partial" else view(self, role)
    )


@mutation(COMPRESSED)
def _() -> None:
    """compression: gradients are never reduced"""
    gradient_reduction.GradientSync.after = lambda self: None  # type: ignore[method-assign]


@mutation(COMPRESSED)
def _() -> None:
    """compression: one replica's part is counted half"""
    gather = counted_collectives.Wire.gather

    def halved(self: Any, tensor: torch.Tensor) -> Any:
        gathered = gather(self, tensor)()
        gathered[-1, : tensor.numel() // 3] *= 0.5
        return lambda: gathered

    counted_collectives.Wire.gather = halved  # type: ignore[method-assign]


@mutation(COMPRESSED_SHARDS)
def _() -> None:
    """compression: the norm counts each replica"""
    whole = gradient_norm.gradient_norm_squared

    def norm(model: Any) -> torch.Tensor:
        model.counts = True
        return whole(model)

    parallel.gradient_norm_squared = norm


@mutation(MUON)
def _() -> None:
    """muon: each part is orthogonalized by itself"""
    muon.hops = lambda tensor, apart=None: iter(())


@mutation(MUON)
def _() -> None:
    """muon: gradients are not clipped yet when matrices are joined"""
    whole = muon.Muon.orthogonalize
    muon.Muon.orthogonalize = lambda self, gradient, factor: whole(self, gradient, None)


@dataclass
class _Without:
    """A module with one name replaced."""

    name: str
    value: Any
    module: Any

    def __getattr__(self, name: str) -> Any:
        return self.value if name == self.name else getattr(self.module, name)


def broken(name: str) -> Callable[[TrainingConfig, Row, int], Outcome]:
    def train(config: TrainingConfig, row: Row, rank: int) -> Outcome:
        BREAK[name][1]()
        return parity.train(config, row, rank)

    return train


def names() -> list[str]:
    """What can be broken."""
    return [*BREAK]


def row(name: str) -> dict[str, Any]:
    """How the row of this mutation differs from one process; `raised` where a rank has died of it."""
    found, _ = BREAK[name]
    with tempfile.TemporaryDirectory() as folder:
        try:
            return asdict(parity.compared(found, Path(folder), references(FEW_STEPS), FEW_STEPS, broken(name)))
        except RuntimeError as error:
            return {"passed": False, "raised": str(error)}
