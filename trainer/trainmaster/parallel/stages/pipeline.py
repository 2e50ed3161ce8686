"""Pipeline parallelism: each stage has consecutive blocks, and micro-batches pass through the stages.

The schedules are torch's. Stages consist of parts of one model, whose parameters keep their names, so any layout can
read the checkpoints of any other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules

from trainmaster.checkpoint.state import capture
from trainmaster.contract.config import PipelineConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel.blocks.precision import DTYPES
from trainmaster.parallel.mesh import Mesh
from trainmaster.parallel.model_plan import Plan, plan_of
from trainmaster.parallel.stages.block_times import agreed
from trainmaster.parallel.stages.partition import costs, partition, table

SCHEDULES = {
    "GPipe": schedules.ScheduleGPipe,
    "1F1B": schedules.Schedule1F1B,
    "Interleaved1F1B": schedules.ScheduleInterleaved1F1B,
    "InterleavedZeroBubble": schedules.ScheduleInterleavedZeroBubble,
    "ZBV": schedules.ScheduleZBVZeroBubble,
    "DualPipeV": schedules.ScheduleDualPipeV,
}
UNITS = {"Parameters": "parameters", "Compute": "operations", "Profile": "time"}
"""The unit whose shares a table of stages shows, by balance."""
_V_SHAPED = ("ZBV", "DualPipeV")  # a rank's second stage is the mirror image of its first


@dataclass(frozen=True)
class StepShape:
    """The size of the work of a rank in a step."""

    time: int  # tokens of a sequence
    micro_batch: int  # sequences
    micro_batches: int


class Stage(nn.Module):  # type: ignore[misc]
    """Some consecutive blocks of a model. The first stage also has the stem, the last one the tail."""

    def __init__(self, model: nn.Module, plan: Plan, index: int, blocks: range, is_last: bool) -> None:
        super().__init__()
        self.index, self.is_first, self.is_last = index, index == 0, is_last
        every = model.get_submodule(plan.blocks)
        self.blocks = nn.ModuleList(every.get_submodule(str(i)) for i in blocks)
        ends = [*(plan.stem if self.is_first else ()), *(plan.tail if self.is_last else ())]
        self.ends = nn.ModuleList(model.get_submodule(path) for path in ends)
        self._model = [model]  # in a list, because its parameters are not all ours
        self.positions = torch.empty(0, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream [B, T, W], or the logits [B, T, V] on the last stage.

        x is the tokens [B, T] on the first stage, and the stream on all others.
        """
        (model,) = self._model
        if self.is_first:
            x = model.embed(x)
        shared = model.shared(self.positions, x)
        for block in self.blocks:
            x = block(x, *shared)
        return model.unembed(x) if self.is_last else x


def apply(
    model: nn.Module,
    mesh: DeviceMesh,
    config: PipelineConfig,
    time: int,
    precision: str,
    profile: Path | None,
    *,
    plain: bool = False,
) -> tuple[list[Stage], str]:
    """Return (this rank's stages, a table of all stages). The rest of the model is dropped.

    `time` is the number of tokens of a sequence, T. `profile` is the file of a measured profile. `plain`: parameters
    stay plain tensors, so the stages of a rank may share them. Raises ConfigError if the model's plan does not name
    blocks, stem and tail, or if a parameter that is trained belongs to no stage, or to two that do not share it.
    """
    plan = plan_of(model)
    if not (plan.blocks and plan.stem and plan.tail):
        raise ConfigError(
            f"parallelism.pp: model {type(model).__name__} declares no plan for a pipeline (plan.blocks, plan.stem "
            f"and plan.tail); only pp 1 would do"
        )
    degree, rank = mesh.size(), mesh.get_local_rank()
    count = degree * config.stages_per_rank
    if config.balance == "Profile":
        found = agreed(model, time, precision, profile)
    else:
        found = costs(model, config.balance, time)
    ranges = partition(found, count)
    owners = {i: other if plain else i for other in range(degree) for i in own_stages(other, degree, config)}
    _check_one_owner(model, plan, ranges, owners)
    indexes = own_stages(rank, degree, config)
    stages = [Stage(model, plan, i, ranges[i], i == count - 1) for i in indexes]
    _forget(model, plan, [i for stage in stages for i in ranges[stage.index]], stages)
    return stages, table(ranges, found, UNITS[config.balance])


def unstaged(model: nn.Module) -> frozenset[str]:
    """Return the names in a checkpoint of the parameters and buffers that belong to no stage.

    They are not trained, so all stages have them, and the first one saves them.
    """
    plan = plan_of(model)
    named = [name for name, _ in capture.named_parameters(model)]
    named += [name.removeprefix(".") for name, _, _ in capture.buffers("", model)]
    parts = tuple(f"{path}." for path in (plan.blocks, *plan.stem, *plan.tail))
    return frozenset(name for name in named if not name.startswith(parts))


def own_stages(rank: int, degree: int, config: PipelineConfig) -> list[int]:
    """Return the indexes of the stages of a rank."""
    if config.schedule in _V_SHAPED:
        return [rank, 2 * degree - 1 - rank]
    return [rank + degree * i for i in range(config.stages_per_rank)]


def _check_one_owner(model: nn.Module, plan: Plan, ranges: Sequence[range], owners: Mapping[int, int]) -> None:
    """Raise ConfigError for a parameter of which several stages would train a copy, each with its own gradients.

    Stages with the same owner share their parameters.
    """
    blocks = model.get_submodule(plan.blocks)
    parts = [
        *((0, model.get_submodule(path)) for path in plan.stem),
        *((stage, blocks.get_submodule(str(i))) for stage, indexes in enumerate(ranges) for i in indexes),
        *((len(ranges) - 1, model.get_submodule(path)) for path in plan.tail),
    ]
    stages_of: dict[int, set[int]] = {}
    for stage, module in parts:
        for parameter in module.parameters():
            stages_of.setdefault(id(parameter), set()).add(stage)
    for name, parameter in model.named_parameters():
        found = sorted(stages_of.get(id(parameter), ()))
        if not parameter.requires_grad or len({owners[stage] for stage in found}) == 1:
            continue
        if not found:
            raise ConfigError(
                f"parallelism.pp: {name} is in no block, and neither in plan.stem nor in plan.tail, so it belongs to "
                f"no stage; name it there, or use pp 1"
            )
        raise ConfigError(
            f"parallelism.pp: {name} is used in stages {found[0]} and {found[-1]}, and each would train a copy of its "
            f"own; use pp 1, or, for weights that the stem and the tail share, in fp32 and without shards, schedule "
            f"ZBV or DualPipeV: there one rank has both ends"
        )


def _forget(model: nn.Module, plan: Plan, blocks: list[int], stages: list[Stage]) -> None:
    """Drop the parts of the model that other ranks hold. The parts that are left keep their names."""
    every = model.get_submodule(plan.blocks)
    _replace(model, plan.blocks, nn.ModuleDict({str(i): every.get_submodule(str(i)) for i in sorted(blocks)}))
    for paths, held in (
        (plan.stem, any(stage.is_first for stage in stages)),
        (plan.tail, any(stage.is_last for stage in stages)),
    ):
        if not held:
            for path in paths:
                _replace(model, path, None)


def _replace(model: nn.Module, path: str, module: nn.Module | None) -> None:
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = module


@dataclass(frozen=True)
class Examples:
    """Tensors without memory with the shapes that a schedule will see, so that it needs no trial run."""

    tokens: Tensor  # the tokens of a micro-batch at the first stage
    stream: Tensor  # the tensor between stages
    logits: Tensor  # the output of the last stage

    @classmethod
    def of(
        cls, shape: StepShape, stream: Tensor, logits: Tensor, precision: str, mesh: Mesh, *, sliced: bool, split: bool
    ) -> Examples:
        """Return the examples for a step. `stream` and `logits` are those of one whole sequence.

        `sliced`: the stream is divided along the sequence. `split`: the logits are divided along the vocabulary.
        """
        batch, time, tp = shape.micro_batch, shape.time // mesh.degree("cp"), mesh.degree("tp")
        between = DTYPES[precision]

        def empty(*sizes: int, dtype: torch.dtype) -> Tensor:
            # What requires gradients is sent gradients.
            return torch.empty(*sizes, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)

        return cls(
            empty(batch, time, dtype=torch.int64),
            empty(batch, time // (tp if sliced else 1), stream.shape[-1], dtype=between),
            empty(batch, time, logits.shape[-1] // (tp if split else 1), dtype=torch.float32),
        )


class _PipelineStage(PipelineStage):  # type: ignore[misc]
    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Return the messages with which torch 2.11 connects the neighbours of a stage; newer ones send none. In a
        V-shaped schedule a stage has a neighbour on its own rank, to which gloo can send nothing, and nothing is
        sent later."""
        ops: list[dist.P2POp] = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.group_peer != self.group_rank]


class Pipeline:
    """Runs all micro-batches of a step through the stages."""

    def __init__(
        self,
        stages: list[Stage],
        mesh: DeviceMesh,
        config: PipelineConfig,
        micro_batches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        examples: Examples,
    ) -> None:
        """`loss(logits, targets)` returns a micro-batch's summand of the step's loss."""
        self.stages = stages
        parts = [
            _PipelineStage(
                stage,
                stage.index,
                mesh.size() * config.stages_per_rank,
                torch.device(mesh.device_type),
                input_args=examples.tokens if stage.is_first else examples.stream,
                output_args=examples.logits if stage.is_last else examples.stream,
                group=mesh.get_group(),
            )
            for stage in stages
        ]
        # The loss is divided by the tokens of the whole step, so nothing is to be divided by micro-batches.
        self._schedule = SCHEDULES[config.schedule](
            parts[0] if config.stages_per_rank == 1 else parts, micro_batches, loss_fn=loss, scale_grads=False
        )

    def forward_backward(self, tokens: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        """Compute a step for tokens [B, T], and return this rank's summand of the loss, which is 0 without the last
        stage.

        After the call, this rank's gradients are complete.
        """
        return self._run(self._schedule.step, tokens, targets, positions).detach()

    def forward(self, tokens: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        """Return this rank's summand of the loss like `forward_backward`, without gradients."""
        return self._run(self._schedule.eval, tokens, targets, positions)

    def _run(self, schedule: Callable[..., Any], tokens: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        for stage in self.stages:
            stage.positions = positions
        inputs = (tokens,) if any(stage.is_first for stage in self.stages) else ()
        if not any(stage.is_last for stage in self.stages):
            schedule(*inputs, return_outputs=False)
            return torch.zeros((), device=tokens.device)
        losses: list[Tensor] = []
        schedule(*inputs, target=targets, losses=losses, return_outputs=False)
        return torch.stack(losses).sum()
