"""Islands that train alone and exchange parameters at intervals: local SGD, DiLoCo (Douillard et al., arXiv
2311.08105), and its streamed fragments (2501.18512).

All islands begin with the same parameters, and each trains with its own optimizer. Every `every` steps, an outer
optimizer takes the mean of the changes of all islands as its gradient. The sums over islands are sent during the
forward and backward pass of the next step, and applied when that step is complete. By then they have arrived on all
ranks, so a rank that can complete the step needs no other rank for it. An island keeps what it has learned in that one
step, on top of the new parameters. At the last step of a run nothing is kept, so that all islands end with the same
parameters.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainmaster.checkpoint.state import capture
from trainmaster.contract.config import OuterConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel.local_shard import local
from trainmaster.reduce.compressed_size import of_sum

if TYPE_CHECKING:
    from trainmaster.parallel.mesh import Mesh

SENT = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class _Exchange:
    """The exchange of a fragment: how far this island's parameters have moved, and the sum of that over islands."""

    members: list[int]
    own: list[Tensor]
    wire: Tensor
    work: Any


class Outer:
    """The parameters that all islands share, and the outer optimizer that updates them."""

    def __init__(self, model: nn.Module, mesh: Mesh, config: OuterConfig, steps: int) -> None:
        """`steps` is the number of steps of the whole run. Raises ConfigError for a model with buffers in its state."""
        self._config, self._steps = config, steps
        self._group, self._islands = mesh.group("island"), mesh.degree("island")
        if buffers := capture.buffers("model", model):
            raise ConfigError(
                f"parallelism.island: the model has the buffer {buffers[0][0]}, and islands average only parameters; "
                f"register it with persistent=False"
            )
        parameters = [p for p in model.parameters() if p.requires_grad]
        names = capture.parameter_names({"": model})
        named = [(names[id(p)].removeprefix("."), p) for p in parameters]
        self._names = [name for name, _ in named]
        self._shards = [local(p) for p in parameters]
        self._common = [shard.clone() for shard in self._shards]
        self._momentum = [torch.zeros_like(shard) for shard in self._shards]
        self._fragments = fragments_of([shard.numel() for shard in self._shards], config.fragments)
        self._under_way: list[_Exchange] = []
        self._sent = 0
        # In checkpoints `model` is what islands have in common; each one's own comes under its own name. Worlds without
        # islands load it, so it also has what is not trained, and a parameter of several modules under each name.
        common = {id(p): shard for p, shard in zip(parameters, self._common, strict=True)}
        self.parameters = Shared(
            {name: (common.get(id(p), local(p)), p) for name, p in capture.named_parameters(model)},
            optional=frozenset(name for name, _ in capture.named_parameters(model)) - {*self._names},
        )
        self.momentum = Shared({name: (shard, p) for (name, p), shard in zip(named, self._momentum, strict=True)})

    @property
    def sent(self) -> tuple[int, int]:
        """Return the bytes that this rank sent to other islands in the last step, and those of a sum of all
        gradients."""
        return self._sent, of_sum(sum(shard.nbytes for shard in self._shards), self._islands)

    def memory(self) -> Iterator[Tensor]:
        """Yield all tensors that are kept between two steps."""
        yield from self._common
        yield from self._momentum

    def begin_with(self, names: Container[str]) -> None:
        """Let the islands share what their model has now of these parameters. Call it when initial weights were drawn
        after this object was made."""
        with torch.no_grad():
            for name, common, shard in zip(self._names, self._common, self._shards, strict=True):
                if name in names:
                    common.copy_(shard)

    def begin(self, step: int) -> None:
        """Start the exchanges that are due. Call it before the forward pass of `step`."""
        assert not self._under_way, "the step before isn't complete"
        self._sent = 0
        for members in self._due(step):
            with torch.no_grad():
                own = torch._foreach_sub([self._common[i] for i in members], [self._shards[i] for i in members])
                wire = torch.cat([part.reshape(-1) for part in own]).to(SENT[self._config.send])
            work = dist.all_reduce(wire, group=self._group, async_op=True)
            self._under_way.append(_Exchange(members, own, wire, work))
            self._sent += of_sum(wire.nbytes, self._islands)

    def wait(self) -> None:
        """Wait for the sums, without any change. Call it before the last all-reduce of a step."""
        for exchange in self._under_way:
            exchange.work.wait()

    def completed(self, step: int) -> None:
        """Apply the sums. Call it after the optimizer of `step`. It needs no other rank."""
        under_way, self._under_way = self._under_way, []
        with torch.no_grad():
            for exchange in under_way:
                self._apply(exchange, keep_own=step < self._steps)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A context in which the model has the parameters that all islands share."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _due(self, step: int) -> list[list[int]]:
        """Return the fragments whose exchange is due at `step`; at the last step of the run, all of them."""
        every, before = self._config.every, step - 1
        if step == self._steps:
            return self._fragments
        count = len(self._fragments)
        return [
            members
            for index, members in enumerate(self._fragments)
            if before and before % every == index * every // count
        ]

    def _apply(self, exchange: _Exchange, *, keep_own: bool) -> None:
        config = self._config
        sizes = [part.numel() for part in exchange.own]
        means = (exchange.wire.float() / self._islands).split(sizes)
        for index, own, mean in zip(exchange.members, exchange.own, means, strict=True):
            common, momentum, shard = self._common[index], self._momentum[index], self._shards[index]
            moved = mean.view_as(common)
            if config.momentum:
                momentum.mul_(config.momentum).add_(moved)
                moved = moved.add(momentum, alpha=config.momentum) if config.nesterov else momentum
            moved = moved * config.lr
            if keep_own:
                shard.add_(own).sub_(moved)
                common.sub_(moved)
            else:
                shard.copy_(common.sub_(moved))

    def _swap(self) -> None:
        with torch.no_grad():
            for common, shard in zip(self._common, self._shards, strict=True):
                before = shard.clone()
                shard.copy_(common)
                common.copy_(before)


class Shared:
    """Tensors placed like parameters, for checkpoints: {name: (this rank's part, the parameter)}.

    `optional`: names that a checkpoint may lack, as those of earlier releases do.
    """

    def __init__(self, parts: Mapping[str, tuple[Tensor, Tensor]], optional: frozenset[str] = frozenset()) -> None:
        self._optional = optional
        self._shards = {name: capture.as_shard_of(part, parameter) for name, (part, parameter) in parts.items()}
        self._parts = [part for part, _ in parts.values()]

    def checkpoint_shards(self) -> dict[str, Tensor]:
        return self._shards

    def checkpoint_targets(self, saved: Mapping[str, list[int]]) -> dict[str, Tensor]:
        """Return the tensors to load into, given the shapes in a checkpoint.

        If the checkpoint has none, because that run had no islands, set the tensors to zero.
        """
        if not saved:
            for part in self._parts:
                part.zero_()
            return {}
        return {name: shard for name, shard in self._shards.items() if name in saved or name not in self._optional}

    def checkpoint_loaded(self, step: int) -> None:
        pass


def fragments_of(sizes: list[int], count: int) -> list[list[int]]:
    """Return runs of neighbouring parameters of about equal size. There may be fewer than `count`."""
    found: list[list[int]] = [[] for _ in range(count)]
    whole, seen = max(1, sum(sizes)), 0
    for index, size in enumerate(sizes):
        found[min(count - 1, (seen + size // 2) * count // whole)].append(index)
        seen += size
    return [members for members in found if members]
