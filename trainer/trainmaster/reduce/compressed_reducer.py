"""Sums of gradients over replicas that do not send all of them.

With any other parallelism (shards, parts of matrices, stages), a rank and its replicas hold the same parts of the
gradients when all backward passes of a step are done. These parts are summed here, once per step, by one of the
methods.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from trainmaster.checkpoint.state import capture
from trainmaster.contract.config import CompressionConfig
from trainmaster.parallel.local_shard import local
from trainmaster.reduce.casts import Cast, Whole
from trainmaster.reduce.compressed_size import of_sum
from trainmaster.reduce.compression_method import Method
from trainmaster.reduce.counted_collectives import Wire
from trainmaster.reduce.power_sgd import Matrix, PowerSGD
from trainmaster.reduce.power_sgd_threshold import matrix
from trainmaster.reduce.top_k import TopK

if TYPE_CHECKING:
    from trainmaster.parallel.mesh import Mesh

WHOLE = Whole()


class Reducer:
    """Sums the gradients of a model over replicas, in place.

    What was not sent of a parameter's gradients is added to those of the next step in which a replica has any for this
    parameter. It is part of the state, and changes only when a step is complete, so that a step that fails can be
    repeated. A checkpoint has it for each parameter, of all replicas, as [replicas, *shape]. Another number of replicas
    shares it out, so that nothing is lost.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, config: CompressionConfig) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._mesh = mesh
        self._replicas = mesh.degree("dpReplicate")
        names = capture.parameter_names({"": model})
        self._names = [names[id(p)].removeprefix(".") for p in self.parameters]
        shards = [local(p) for p in self.parameters]
        assert all(shard.dtype == torch.float32 for shard in shards), "gradients are summed in fp32"
        self._shapes = [shard.shape for shard in shards]
        self._sizes = [shard.numel() for shard in shards]
        self._wire = Wire(mesh["dpReplicate"].get_group()) if self._replicas > 1 else None
        self._method = _method(config, self.parameters, self._sizes)
        self._work = shards[0].new_zeros(sum(self._sizes))
        self._kept = torch.zeros_like(self._work) if self._method.keeps_error else None  # of the last completed step
        self._summed = False  # of a step that isn't complete
        self._warm_up = config.warmupSteps  # left
        self._loading: dict[str, Tensor] = {}
        self._stacks: dict[int, dict[str, Tensor]] = {}  # by the memory they are of

    @property
    def has_state(self) -> bool:
        """Return True if the reducer has state that checkpoints must keep."""
        return self._kept is not None

    @property
    def sent(self) -> tuple[int, int]:
        """Return the bytes that this rank sent in the last step, and those that it would have sent without
        compression."""
        if self._wire is None:
            return 0, 0
        return self._wire.sent, of_sum(self._work.nbytes, self._replicas)

    def memory(self) -> Iterator[Tensor]:
        """Yield all tensors that are kept between two steps."""
        yield self._work
        if self._kept is not None:
            yield self._kept
        yield from getattr(self._method, "right", {}).values()

    def reduce(self) -> None:
        """Sum the gradients. All ranks call it after the last backward pass of a step."""
        if self._summed:
            raise RuntimeError("the previous step isn't complete: call completed() after the optimizer's step")
        self._summed = True
        with torch.no_grad():
            self._reduce()

    def completed(self) -> None:
        """Note that the step whose gradients were summed last is complete."""
        self._summed = False
        self._warm_up = max(0, self._warm_up - 1)
        if self._kept is not None:
            self._kept, self._work = self._work, self._kept
        self._method.completed()

    def checkpoint_shards(self) -> dict[str, Tensor]:
        """Return this rank's part of the state after the last completed step.

        The tensors do not change before the next step is complete.
        """
        if self._kept is None:
            return {}
        memory = self._kept.data_ptr()
        if memory not in self._stacks:
            views = zip(self._names, self._views(self._kept), self.parameters, strict=True)
            self._stacks[memory] = {
                f"residual.{name}": self._stacked(kept.unsqueeze(0), parameter, self._replicas)
                for name, kept, parameter in views
            }
        found = {**self._stacks[memory]}
        if isinstance(self._method, PowerSGD):
            for index, right in self._method.right.items():
                found[f"right.{self._names[index]}"] = self._of_each_shard(right, self.parameters[index])
        return found

    def checkpoint_targets(self, saved: Mapping[str, list[int]]) -> dict[str, Tensor]:
        """Return the tensors to load into, given the shapes in a checkpoint. `checkpoint_loaded` then uses them."""
        self._loading = {}
        own = self.checkpoint_shards()
        for name, parameter, shape in zip(self._names, self.parameters, self._shapes, strict=True):
            key = f"residual.{name}"
            if self._kept is None or key not in saved:
                continue
            before = saved[key][0]
            each = -(-before // self._replicas)
            count = min(each, max(0, before - self._mesh.coordinate("dpReplicate") * each))
            if count:
                self._loading[key] = self._stacked(self._kept.new_zeros(count, *shape), parameter, before)
        # A right factor of another layout is of other columns: then the one to begin with will do.
        self._loading.update(
            {key: own[key] for key in own if key.startswith("right.") and saved.get(key) == list(own[key].shape)}
        )
        return self._loading

    def checkpoint_loaded(self, step: int) -> None:
        """Use the tensors of `checkpoint_targets`, which were loaded from a checkpoint of this step."""
        self._warm_up = max(0, self._warm_up - step)
        if self._kept is None:
            return
        with torch.no_grad():
            for name, kept in zip(self._names, self._views(self._kept), strict=True):
                found = self._loading.get(f"residual.{name}")
                kept.zero_() if found is None else kept.copy_(local(found).sum(0))
        self._loading = {}

    def _reduce(self) -> None:
        own = self._views(self._work)
        kept = self._views(self._kept) if self._kept is not None else []
        present = self._work.new_ones(len(self.parameters))
        self._work.copy_(self._kept) if self._kept is not None else self._work.zero_()
        there = [(part, local(p.grad)) for part, p in zip(own, self.parameters, strict=True) if p.grad is not None]
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                present[index] = 0.0
        if there:
            torch._foreach_add_([part for part, _ in there], [gradient for _, gradient in there])
        if self._wire is None:  # no other replica: what one of a larger world has kept comes in at once
            total, found = self._work.clone(), present
            self._work.zero_()
        else:
            self._wire.sent = 0
            method = WHOLE if self._warm_up else self._method
            total, found = method.sum(self._work, present, self._wire)
        # Only who lacks a gradient has to ask whether others have it.
        others = found.tolist() if len(there) < len(self.parameters) else [1.0] * len(self.parameters)
        sums = []
        for index, (parameter, part) in enumerate(zip(self.parameters, self._views(total), strict=True)):
            if not others[index]:
                # No replica changes this parameter in this step, so each one keeps what it has sent of it.
                if kept:
                    own[index].copy_(kept[index])
                continue
            if parameter.grad is None:
                parameter.grad = capture.as_shard_of(torch.empty_like(part), parameter)
            sums.append((local(parameter.grad), part))
        if sums:
            torch._foreach_copy_([gradient for gradient, _ in sums], [part for _, part in sums])

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]

    def _stacked(self, local: Tensor, parameter: Tensor, count: int) -> Tensor:
        """Return `local` [n, *shard], the parts of n of `count` replicas, as a part of [count, *whole]."""
        mesh, placements = self._lies(parameter)
        if mesh is None:
            return local
        own: list[Placement] = [Shard(0)] * (mesh.ndim - len(placements)) + [_shifted(p) for p in placements]
        return _part(local, mesh, own, torch.Size([count, *parameter.shape]))

    def _of_each_shard(self, local: Tensor, parameter: Tensor) -> Tensor:
        """Return `local`, which is equal on all replicas of a shard, as a part of [shards, *local.shape]."""
        mesh, placements = self._lies(parameter)
        if mesh is None:
            return local.unsqueeze(0)
        over = mesh.ndim - len(placements)
        count = math.prod(mesh.size(axis) for axis in range(over, mesh.ndim))
        own: list[Placement] = [Replicate()] * over + [Shard(0)] * len(placements)
        return _part(local.unsqueeze(0), mesh, own, torch.Size([count, *local.shape]))

    def _lies(self, parameter: Tensor) -> tuple[Any, tuple[Placement, ...]]:
        """Return (the mesh of a parameter and its replicas, the parameter's placements on the last axes of this
        mesh)."""
        if isinstance(parameter, DTensor):
            return self._mesh.with_replicas(parameter.device_mesh), parameter.placements
        return (self._mesh["dpReplicate"] if self._wire is not None else None), ()


def _method(config: CompressionConfig, parameters: list[nn.Parameter], sizes: list[int]) -> Method:
    if config.method == "TopK":
        return TopK(config.share_or_default)
    if config.method == "PowerSGD":
        rank = config.rank_or_default
        matrices = []
        for index, (parameter, start) in enumerate(
            zip(parameters, itertools.accumulate(sizes, initial=0), strict=False)
        ):
            split = matrix(_even_shape(parameter), rank)
            if split is not None:
                matrices.append(Matrix(index, start, sizes[index] // split[1], split[1]))
        return PowerSGD(matrices, sizes, rank, parameters[0].device)
    return Cast({"fp16": torch.float16, "bf16": torch.bfloat16}[config.method])


def _even_shape(parameter: Tensor) -> list[int]:
    """Return the shape of this rank's part, as it is on most ranks, so that all ranks decide the same."""
    shape = [*parameter.shape]
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if isinstance(placement, Shard | _StridedShard):
                shape[placement.dim] = -(-shape[placement.dim] // parameter.device_mesh.size(axis))
    return shape


def _part(local: Tensor, mesh: Any, placements: list[Placement], whole: torch.Size) -> DTensor:
    stride = torch.empty(whole, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole, stride=stride)


def _shifted(placement: Placement) -> Placement:
    """Return the placement of a tensor with one more dim before all others."""
    if isinstance(placement, _StridedShard):
        return _StridedShard(placement.dim + 1, split_factor=placement.split_factor)
    return Shard(placement.dim + 1) if isinstance(placement, Shard) else placement
