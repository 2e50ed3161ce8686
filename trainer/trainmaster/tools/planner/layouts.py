"""The layouts that a job may have with a number of ranks: those that the training loop would not refuse.

There is no list of rules here: `ParallelismConfig`, `layout.validate` and `TrainingConfig.accumulation` check each
product of degrees, as in a rank before it builds anything. It imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from trainmaster.contract.config import (
    CompressionConfig,
    ContextConfig,
    PipelineConfig,
    ShardingConfig,
    TensorConfig,
    TrainingConfig,
    divisors,
)
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism

STEP = 1.5
"""A micro-batch size is compared only if it is at least this many times the next smaller one, so that a share with many
divisors doesn't make the table slow."""

NEAR = 64
"""How far from a number of ranks without a layout others are looked for."""

SHORT = {"dpReplicate": "repl", "dpShard": "shard"}


@dataclass(frozen=True)
class Layout:
    """One way for `ranks` ranks to share the work. `config` has its parallelism and its micro-batch."""

    config: TrainingConfig
    ranks: int

    @cached_property
    def degrees(self) -> dict[str, int]:
        """Return the degree of every axis."""
        found = self.config.parallelism.resolve(self.ranks)
        return {axis: found.get(axis, 1) for axis in ("pp", "dpReplicate", "dpShard", "cp", "tp", "ep")}

    @cached_property
    def micro_batches(self) -> tuple[int, int]:
        """Return (sequences of a micro-batch, micro-batches of a step), for each rank."""
        return self.config.accumulation(self.ranks)

    @property
    def shards(self) -> int:
        """Return the number of ranks that parameters are sharded over."""
        return self.degrees["dpShard"] * self.degrees["cp"]

    @property
    def is_sharded(self) -> bool:
        return self.shards > 1

    @property
    def is_plain(self) -> bool:
        return allowed_parallelism.is_plain(self.degrees, self.config.precision)

    def axes_between_nodes(self, ranks_per_node: int) -> set[str]:
        """Return the axes whose groups don't all fit into one node. Neighbouring ranks share a node, and the axes of
        the mesh are nested (see `parallel.mesh`): parameters are sharded over dpShard x cp, and ep lies within it."""
        if self.ranks <= ranks_per_node:
            return set()
        degrees, span, spans = self.degrees, 1, {}
        for axis in ("tp", "cp", "dpShard", "dpReplicate", "pp"):
            span *= degrees[axis]
            spans[axis] = span
        spans["ep"] = degrees["tp"] * degrees["ep"]
        return {axis for axis, span in spans.items() if degrees[axis] > 1 and ranks_per_node % span}

    @property
    def compression(self) -> CompressionConfig | None:
        """Return the compression of gradients that replicas sum, or None."""
        communication = self.config.communication
        return communication.compression if communication is not None else None

    @property
    def pipeline(self) -> PipelineConfig:
        return self.config.parallelism.pipeline or PipelineConfig()

    @property
    def tensor(self) -> TensorConfig:
        return self.config.parallelism.tensor or TensorConfig()

    @property
    def context(self) -> ContextConfig:
        return self.config.parallelism.context or ContextConfig()

    @property
    def sharding(self) -> ShardingConfig:
        return self.config.parallelism.sharding or ShardingConfig()

    @property
    def name(self) -> str:
        axes = [f"{SHORT.get(axis, axis)} {n}" for axis, n in self.degrees.items() if n > 1]
        if self.is_sharded and self.degrees["pp"] == 1:
            axes.append(f"zero {self.sharding.stage}")
        return ", ".join(axes) or "one rank"

    @property
    def fields(self) -> dict[str, Any]:
        """Return the content of `spec.training.parallelism`."""
        found = self.config.parallelism.model_dump(mode="json", exclude_none=True)
        if self.degrees["pp"] > 1 and "sharding" in found:
            # In a pipeline all stages of ZeRO do the same, and a job that says one is refused.
            del found["sharding"]["stage"]
            if not any(found["sharding"].values()):
                del found["sharding"]
        return found

    def with_micro_batch(self, micro: int) -> Layout:
        batch = self.config.batch.model_copy(update={"micro": micro})
        return Layout(self.config.model_copy(update={"batch": batch}), self.ranks)


def legal(config: TrainingConfig, ranks: int) -> Iterator[Layout]:
    """Yield all layouts of `ranks` ranks that the job's model and batch allow. Axes that the job sets are kept."""
    for parallelism in _products(config, ranks):
        layout = _allowed(config, parallelism, ranks)
        if layout is not None:
            yield layout


def smaller_micro_batches(layout: Layout) -> Iterator[Layout]:
    """Yield the layout with its micro-batch, and then with smaller ones, unless the job sets the size."""
    yield layout
    micro, count = layout.micro_batches
    if layout.config.batch.micro is not None:
        return
    for smaller in reversed(divisors(micro * count)):
        if smaller < micro and (other := _with_legal_micro_batch(layout, smaller)):
            yield other


def micro_batches_to_compare(layout: Layout) -> list[Layout]:
    """Return the layout with each micro-batch size that is worth an estimate, the largest first.

    The sizes are legal ones, each at least STEP times the next smaller one, and the smallest is always among them. If
    the job sets `batch.micro`, only that size is returned. They don't depend on memory: a rank with more memory has
    the choices of a rank with less, and some more.
    """
    if layout.config.batch.micro is not None:
        return [layout]
    micro, count = layout.micro_batches
    found: list[Layout] = []
    last = 0
    for size in divisors(micro * count):
        if size >= STEP * last and (other := _with_legal_micro_batch(layout, size)):
            found.append(other)
            last = size
    return found[::-1]


def _with_legal_micro_batch(layout: Layout, micro: int) -> Layout | None:
    other = layout.with_micro_batch(micro)
    try:
        _ = other.micro_batches
    except ValueError:
        return None
    return other


def nearest(config: TrainingConfig, ranks: int) -> list[int]:
    """Return the numbers of ranks next to `ranks` that have a legal layout: one below, if there is one, and one
    above.

    They are looked for up to NEAR from `ranks`. If there is none, the largest power of two below that has a layout is
    returned, or nothing: far above what a model allows, none of thousands of numbers has one.
    """
    below = next((n for n in range(ranks - 1, max(0, ranks - NEAR - 1), -1) if _any(config, n)), None)
    above = next((n for n in range(ranks + 1, ranks + NEAR + 1) if _any(config, n)), None)
    if below is None and above is None:
        powers = (1 << exponent for exponent in reversed(range((ranks - 1).bit_length())))
        below = next((n for n in powers if _any(config, n)), None)
    return [n for n in (below, above) if n is not None]


def _any(config: TrainingConfig, ranks: int) -> bool:
    return next(legal(config, ranks), None) is not None


def _allowed(config: TrainingConfig, parallelism: dict[str, Any], ranks: int) -> Layout | None:
    try:
        degrees = type(config.parallelism).model_validate(parallelism)
        found = Layout(config.model_copy(update={"parallelism": degrees}), ranks)
        allowed_parallelism.validate(found.config)
        _ = found.degrees, found.micro_batches
    except (ConfigError, ValueError):
        return None
    return found


def _products(config: TrainingConfig, ranks: int) -> Iterator[dict[str, Any]]:
    """Yield `parallelism` for every product of degrees that is `ranks` and whose data-parallel ranks divide the batch.

    Others would be refused, and 1,024 ranks have thousands of products.
    """
    given = config.parallelism.model_dump(mode="json", exclude_none=True)
    batch = config.batch.at(ranks).global_
    for pp, tp, cp, shard in _factors(ranks, batch):
        replicate = ranks // (pp * tp * cp * shard)
        for ep in divisors(shard * cp):
            axes = {"pp": pp, "tp": tp, "cp": cp, "ep": ep}
            fields: dict[str, Any] = {"dpReplicate": replicate, "dpShard": shard}
            fields |= {axis: n for axis, n in axes.items() if n > 1}
            fields |= {
                name: given[name]
                for name, axis in (("pipeline", "pp"), ("tensor", "tp"), ("context", "cp"))
                if name in given and axes[axis] > 1
            }
            for sharding in _shardings(given.get("sharding"), pp, shard * cp):
                yield {**fields, **({"sharding": sharding} if sharding else {})}


def _shardings(given: dict[str, Any] | None, pp: int, shards: int) -> list[dict[str, Any] | None]:
    """Yield the stages of ZeRO, unless the job sets one. In a pipeline, and without shards, none is set."""
    if shards == 1:
        return [None]
    if pp > 1:
        return [{name: value for name, value in (given or {}).items() if name != "stage"} or None]
    if given is not None:
        return [given]
    return [{"stage": 3}, {"stage": 2}, {"stage": 1}]


def _factors(ranks: int, batch: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (pp, tp, cp, dpShard) of every product whose data-parallel ranks divide the batch, in ascending order."""
    those_of = cache(divisors)
    for pp in those_of(ranks):
        for tp in those_of(ranks // pp):
            for cp in those_of(ranks // pp // tp):
                data = ranks // pp // tp // cp
                if batch % data == 0:
                    for shard in those_of(data):
                        yield pp, tp, cp, shard
