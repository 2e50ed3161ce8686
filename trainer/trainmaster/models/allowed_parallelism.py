"""Which parallelism a model allows, from its options alone, before any process starts.

It imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainmaster import models
from trainmaster.contract.config import ContextConfig, PipelineConfig, TensorConfig, TrainingConfig, divisors
from trainmaster.contract.config.refused_combinations import (
    compression_refusal,
    muon_refusal,
    noise_refusal,
    refused_compile,
)
from trainmaster.errors import ConfigError
from trainmaster.models.model_facts import Facts

DEFAULT_AXES = frozenset({"tp", "cp", "pp"})
"""The axes of the mesh along which a model can be divided, unless its facts say otherwise."""


def validate(config: TrainingConfig) -> None:
    """Raise ConfigError with everything that the model does not allow, one sentence per line."""
    problems = list(_problems(config, models.facts(config.model)))
    if problems:
        raise ConfigError("\n".join(problems))


def is_plain(degrees: Mapping[str, int], precision: str) -> bool:
    """Return True if parameters are plain tensors on each rank: not sharded, cast, or split among replicas."""
    whole = all(degrees.get(axis, 1) == 1 for axis in ("dpShard", "cp"))
    return precision == "fp32" and whole and (degrees.get("dpReplicate", 1) == 1 or degrees.get("tp", 1) == 1)


def _problems(config: TrainingConfig, facts: Facts) -> Iterator[str]:
    degrees = config.parallelism
    tp, cp, pp = (degrees.tp or 1), (degrees.cp or 1), (degrees.pp or 1)
    axes = DEFAULT_AXES if facts.axes is None else facts.axes
    refused = [axis for axis, n in (("tp", tp), ("cp", cp), ("pp", pp)) if n > 1 and axis not in axes]
    for axis in refused:
        yield f"parallelism.{axis}: model {facts.name} can't be taken apart along {axis}; only 1 would do"
    if refused:
        return
    if facts.known:
        yield from _sizes(config, facts)
    if config.recompute == "Reversible" and facts.known and not facts.reversible:
        yield (
            f"recompute: Reversible needs blocks of two streams, and model {facts.name} has one; Full would do, or, of "
            f"gpt and llama, model.options.reversible true, which makes it another model"
        )
    if config.compile and facts.experts:
        yield (
            f"compile: what a block of model {facts.name} computes depends on which experts tokens choose, so it can't "
            f"be compiled; compile left out would do"
        )
    if config.batch.autoMicro and (facts.image or not facts.known):
        yield (
            f"batch.autoMicro: the memory of model {facts.name} can't be estimated; of built-in transformers it can, "
            f"batch.micro would do"
        )
    elif config.batch.autoMicro and config.outer is not None:
        yield "batch.autoMicro: the memory of islands can't be estimated; batch.micro would do"
    # These layouts come from `plan`, not from a person.
    for rule in (compression_refusal, muon_refusal, refused_compile, noise_refusal):
        if words := rule(config):
            yield words


def _sizes(config: TrainingConfig, facts: Facts) -> Iterator[str]:
    """Yield a sentence for each size of the model that does not divide, or is too small."""
    degrees = config.parallelism
    tp, cp, pp, ep = (degrees.tp or 1), (degrees.cp or 1), (degrees.pp or 1), (degrees.ep or 1)
    yield from _tensor(tp, facts)
    yield from _context(cp, tp, degrees.context or ContextConfig(), facts)
    tensor = degrees.tensor or TensorConfig()
    if tp > 1 and tensor.sequence and facts.context % cp == 0 and facts.context // cp % tp:
        yield (
            f"parallelism.tp: {tp} doesn't divide the {facts.context // cp} tokens that a rank has of each sequence "
            f"(model.options.context {facts.context} / cp {cp}); {_listed(facts.context // cp)} would, or any with "
            f"parallelism.tensor.sequence false"
        )
    pipeline = degrees.pipeline or PipelineConfig()
    stages = pp * pipeline.stages_per_rank
    if pp > 1 and facts.layers < stages:
        most = facts.layers // pipeline.stages_per_rank
        each = f" x {pipeline.stages_per_rank} stages per rank" if pipeline.stages_per_rank > 1 else ""
        yield (
            f"parallelism.pp: {pp}{each} needs at least {stages} layers, and model.options.layers is {facts.layers}; "
            f"at most {most} would do"
        )
    if config.evaluation is not None and pp > 1 and pipeline.schedule in ("ZBV", "DualPipeV"):
        # torch's forward-only passes of a rank whose stages are neighbours fail, as of 2.15.
        yield (
            f"evaluation: a pipeline of schedule {pipeline.schedule} can't compute without gradients; with "
            f"parallelism.pipeline.schedule 1F1B, Interleaved1F1B or InterleavedZeroBubble it would do"
        )
    if ep > 1 and not facts.experts:
        yield f"parallelism.ep: model {facts.name} has no experts; only 1 would do"
    elif ep > 1 and facts.experts % ep:
        good = _listed(facts.experts)
        yield f"parallelism.ep: {ep} doesn't divide model.options.experts {facts.experts}; {good} would"


def _tensor(tp: int, facts: Facts) -> Iterator[str]:
    parts = {"heads": facts.heads, "kv_heads": facts.kv_heads, "hidden": facts.hidden, "vocabulary": facts.vocabulary}
    for name, size in parts.items():
        if size % tp:
            yield f"parallelism.tp: {tp} doesn't divide the model's {name} {size}; {_listed(size)} would"
            return  # the same degree is wrong for more of them, mostly


def _context(cp: int, tp: int, context: ContextConfig, facts: Facts) -> Iterator[str]:
    if cp == 1:
        return
    chunks = 2 * cp if context.balance == "HeadTail" else cp
    if facts.context % chunks:
        each = "2 chunks for each of cp" if context.balance == "HeadTail" else "a chunk for each of cp"
        nearest = facts.context // chunks * chunks or chunks
        yield (
            f"parallelism.cp: model.options.context {facts.context} doesn't divide into {chunks} ({each} {cp} ranks); "
            f"{nearest} and {nearest + chunks} would"
        )
    if context.method == "Ulysses" and facts.heads % tp == 0:
        for name, size in (("heads", facts.heads), ("kv_heads", facts.kv_heads)):
            if size // tp % cp:
                yield (
                    f"parallelism.cp: {cp} doesn't divide the {size // tp} {name} that a rank has, which Ulysses "
                    f"exchanges; {_listed(size // tp)} would, or parallelism.context.method AllGather"
                )
                return


def _listed(size: int) -> str:
    """Return the divisors of a size as text, the first eight of them up to 1024."""
    found = [n for n in divisors(size) if n <= 1024]
    return ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")
