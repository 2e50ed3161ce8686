"""Options that a person has set and that no code would use: each is refused with a sentence.

An API server writes defaults into a job, so a field that has its default value does not count as set; a field without a
default counts if it is there. A stored job keeps running: `job_validation` applies these rules, and so does the API
server (`CEL_RULES`, as far as they do not depend on the number of ranks), but the models accept such options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from trainmaster_operator.api.validation.cross_field_rules import Breach, Rule

if TYPE_CHECKING:
    from trainmaster_operator.api.job_spec import JobSpec

Degrees = dict[str, int]
Used = Callable[[Degrees], bool]


def of_optimizer(spec: JobSpec) -> Iterator[Breach]:
    """Yield options that belong to another optimizer or to another schedule."""
    if spec.training is None:
        return
    optimizer, where = spec.training.optimizer, ("training", "optimizer")
    if optimizer.name == "adamw" and optimizer.momentum is not None:
        yield (*where, "momentum"), "adamw has betas and no momentum; remove it, or set name to sgd or muon"
    if optimizer.name == "sgd":
        for name in _set(optimizer, "betas", "eps"):
            yield (*where, name), "sgd has no such option; remove it, or set name to adamw or muon"
    if optimizer.schedule == "Constant":
        for name in _set(optimizer, "minLrRatio"):
            yield (*where, name), "it has no effect with schedule Constant; leave it out"


def of_divergence(spec: JobSpec) -> Iterator[Breach]:
    """Yield divergence.window if no check uses it."""
    if spec.training is None:
        return
    divergence = spec.training.divergence
    if divergence.spikeFactor is None and divergence.normSpikeFactor is None:
        for name in _set(divergence, "window"):
            words = "it has no effect without spikeFactor or normSpikeFactor; leave it out, or set one of them"
            yield ("training", "divergence", name), words


def of_checkpoints(spec: JobSpec) -> Iterator[Breach]:
    """Yield options for saving that a script ignores, because it decides itself when it saves."""
    if spec.framework.value != "Trainmaster":
        for name in _set(spec.checkpoint, "every", "keep", "keepBest"):
            yield ("checkpoint", name), "a script saves its own checkpoints, when it decides to; leave it out"


def of_memory(spec: JobSpec) -> Iterator[Breach]:
    """Yield options of a memory tier that is turned off."""
    ram = spec.checkpoint.ram
    if ram is not None and ram.limit == "0":
        for name in _set(ram, "every", "peers"):
            yield ("checkpoint", "ram", name), "nothing is kept in memory with limit 0; leave one of them out"


def of_storage(spec: JobSpec) -> Iterator[Breach]:
    """Yield options for saving if the job has no storage. This holds on a cluster only: a run on one machine saves to
    its output folder."""
    checkpoint = spec.checkpoint
    if checkpoint.folder is not None:
        return
    words = (
        "the job has no storage, so nothing is saved; set checkpoint.volume or checkpoint.directory, or leave it out"
    )
    given = [*_set(checkpoint, "every", "keep", "keepBest")] if spec.framework.value == "Trainmaster" else []
    given += _set(checkpoint, "timeoutSeconds")
    # With limit 0 the memory tier is turned off, so `ram` is consistent with having no storage.
    given += ["ram"] if checkpoint.ram is not None and checkpoint.ram.limit != "0" else []
    for name in given:
        yield ("checkpoint", name), words


def of_sizes(spec: JobSpec) -> Iterator[Breach]:
    """Yield options for changes of the size if the job can have only one size."""
    if not spec.elastic:
        for name in _set(spec.recovery.elastic, "waitSeconds", "cooldownSeconds"):
            words = (
                "the job cannot change its size, because neither workers.min nor workers.max is set; set one of them, "
                "or remove this field"
            )
            yield ("recovery", "elastic", name), words


def of_hangs(spec: JobSpec) -> Iterator[Breach]:
    """Yield options for finding hangs if ranks are not watched."""
    hang = spec.recovery.hang
    if hang.mode.value == "Off":
        for name in _set(hang, "limitSeconds", "factor"):
            yield ("recovery", "hang", name), "nothing is watched with mode Off; leave one of them out"


def of_axes(spec: JobSpec) -> Iterator[Breach]:
    """Yield options of a mesh axis that has the degree 1."""
    if spec.training is None:
        return
    parallelism, where = spec.training.parallelism, ("training", "parallelism")
    for name, axis in (("pipeline", "pp"), ("tensor", "tp"), ("context", "cp")):
        # If the axis is missing, the model itself refuses the options.
        if getattr(parallelism, name) is not None and getattr(parallelism, axis) == 1:
            yield (*where, name), f"it configures axis {axis}, but {axis} is 1; leave it out, or set {axis} above 1"


def of_shards(spec: JobSpec) -> Iterator[Breach]:
    """Yield sharding options if there are no shards, and the stage of ZeRO where it has no effect."""
    training = spec.training
    if training is None or training.parallelism.sharding is None:
        return
    where = ("training", "parallelism", "sharding")
    if _never(spec, lambda degrees: _shards(degrees) > 1):
        yield where, "it configures shards, but dpShard x cp is 1; leave it out, or set dpShard to 2 or more"
    elif (training.parallelism.pp or 1) > 1 and (name := next(_set(training.parallelism.sharding, "stage"), None)):
        words = (
            "in a pipeline all values of stage do the same: parameters are gathered and gradients summed once in each "
            "step; remove it"
        )
        yield (*where, name), words


def of_buckets(spec: JobSpec) -> Iterator[Breach]:
    """Yield bucketMiB if gradients are not sent in buckets."""
    training = spec.training
    if training is None or training.communication is None or not any(_set(training.communication, "bucketMiB")):
        return
    if training.communication.compression is not None:
        why = "compression sends all gradients of a step at once"
    elif training.precision != "fp32":
        why = f"gradients travel block by block with precision {training.precision}"
    elif _never(spec, lambda degrees: degrees["dpReplicate"] > 1):
        why = "gradients of replicas travel in buckets, and dpReplicate is 1"
    elif _never(spec, lambda degrees: degrees["dpReplicate"] > 1 and _shards(degrees) * degrees.get("tp", 1) == 1):
        why = "with dpShard, cp or tp, replicas exchange gradients block by block and not in buckets"
    else:
        return
    yield ("training", "communication", "bucketMiB"), f"{why}; leave it out"


def of_compression(spec: JobSpec) -> Iterator[Breach]:
    """Yield compression if there are no replicas that exchange gradients."""
    training = spec.training
    if training is None or training.communication is None or training.communication.compression is None:
        return
    # If dpReplicate 1 is given, the model itself refuses compression.
    if training.parallelism.dpReplicate != 1 and _never(spec, lambda degrees: degrees["dpReplicate"] > 1):
        words = "it compresses gradients that replicas sum, and dpReplicate is 1; leave it out, or lower dpShard"
        yield ("training", "communication", "compression"), words


RULES: tuple[Rule, ...] = (of_optimizer, of_divergence, of_checkpoints, of_memory, of_sizes, of_hangs)
RULES_OF_CLUSTERS: tuple[Rule, ...] = (of_storage,)
RULES_OF_DEGREES: tuple[Rule, ...] = (of_axes, of_shards, of_buckets, of_compression)


def _set(model: BaseModel, *names: str) -> Iterator[str]:
    """Return the names of those fields that differ from their default."""
    fields = type(model).model_fields
    return (name for name in names if getattr(model, name) != fields[name].get_default(call_default_factory=True))


def _shards(degrees: Degrees) -> int:
    return degrees["dpShard"] * degrees.get("cp", 1)


def _never(spec: JobSpec, used: Used) -> bool:
    """Return whether `used` is false for the degrees of every size that the job may have. Return False if the job can
    have no size at all."""
    assert spec.training is not None
    workers, known = spec.workers, False
    sizes = range(workers.max or workers.replicas, (workers.min or 1) - 1, -1) if spec.elastic else [workers.replicas]
    for replicas in sizes:
        try:
            degrees = spec.training.parallelism.resolve(replicas * workers.ranksPerPod)
        except ValueError:
            continue
        known = True
        if used(degrees):
            return False
    return known


_TRAINING = "self.training"
_MESH = f"{_TRAINING}.parallelism"
_OPTIMIZER = f"{_TRAINING}.optimizer"
_DIVERGENCE = f"{_TRAINING}.divergence"
_COMMUNICATION = f"{_TRAINING}.communication"


def _one(axis: str) -> str:
    return f"(!has({_MESH}.{axis}) || {_MESH}.{axis} == 1)"


_CHECKPOINT = "self.checkpoint"
_RAM = f"{_CHECKPOINT}.ram"
_ELASTIC = "self.recovery.elastic"
_HANG = "self.recovery.hang"

CEL_RULES: list[dict[str, Any]] = [
    {
        "rule": "self.framework == 'Trainmaster'"
        f" || ({_CHECKPOINT}.every == 50 && {_CHECKPOINT}.keep == 3 && !{_CHECKPOINT}.keepBest)",
        "message": "checkpoint: a script saves its own checkpoints, when it decides to; leave every, keep and keepBest"
        " out",
    },
    {
        "rule": f"!has({_RAM}) || !has({_RAM}.limit) || {_RAM}.limit != '0'"
        f" || (!has({_RAM}.every) && {_RAM}.peers == 1)",
        "message": "checkpoint.ram: nothing is kept in memory with limit 0; leave every and peers out",
    },
    {
        "rule": f"has({_CHECKPOINT}.volume) || has({_CHECKPOINT}.directory) || ({_CHECKPOINT}.every == 50"
        f" && {_CHECKPOINT}.keep == 3 && !{_CHECKPOINT}.keepBest && {_CHECKPOINT}.timeoutSeconds == 900"
        f" && (!has({_RAM}) || (has({_RAM}.limit) && {_RAM}.limit == '0')))",
        "message": "checkpoint: the job has no storage, so nothing is saved; set volume or directory, or leave every,"
        " keep, keepBest, timeoutSeconds and ram out",
    },
    {
        "rule": f"has(self.workers.min) || has(self.workers.max)"
        f" || ({_ELASTIC}.waitSeconds == 30 && {_ELASTIC}.cooldownSeconds == 60)",
        "message": "recovery.elastic: the job cannot change its size; set workers.min or workers.max, or leave"
        " waitSeconds and cooldownSeconds out",
    },
    {
        "rule": f"{_HANG}.mode != 'Off' || ({_HANG}.limitSeconds == 600 && {_HANG}.factor == 3.0)",
        "message": "recovery.hang: nothing is watched with mode Off; leave limitSeconds and factor out",
    },
    {
        "rule": f"!has({_TRAINING}) || !has({_OPTIMIZER}.momentum) || {_OPTIMIZER}.name != 'adamw'",
        "message": "training.optimizer.momentum: adamw has betas and no momentum; leave it out",
    },
    {
        "rule": f"!has({_TRAINING}) || {_OPTIMIZER}.name != 'sgd'"
        f" || ({_OPTIMIZER}.betas == [0.9, 0.95] && {_OPTIMIZER}.eps == 1e-08)",
        "message": "training.optimizer: sgd has neither betas nor eps; leave them out",
    },
    {
        "rule": f"!has({_TRAINING}) || {_OPTIMIZER}.schedule != 'Constant' || {_OPTIMIZER}.minLrRatio == 0.1",
        "message": "training.optimizer.minLrRatio has no effect with schedule Constant; leave it out",
    },
    {
        "rule": f"!has({_TRAINING}) || {_DIVERGENCE}.window == 100 || has({_DIVERGENCE}.spikeFactor)"
        f" || has({_DIVERGENCE}.normSpikeFactor)",
        "message": "training.divergence.window has no effect without spikeFactor or normSpikeFactor; leave it out",
    },
    *(
        {
            "rule": f"!has({_TRAINING}) || !has({_MESH}.{options}) || (has({_MESH}.{axis}) && {_MESH}.{axis} > 1)",
            "message": f"training.parallelism.{options} configures axis {axis}: {axis} must be 2 or more",
        }
        for options, axis in (("pipeline", "pp"), ("tensor", "tp"), ("context", "cp"))
    ),
    {
        "rule": f"!has({_TRAINING}) || !has({_MESH}.sharding) || !{_one('cp')}"
        f" || (has({_MESH}.dpShard) ? {_MESH}.dpShard > 1 : has({_MESH}.dpReplicate))",
        "message": "training.parallelism.sharding configures shards: dpShard or cp must be 2 or more",
    },
    {
        "rule": f"!has({_TRAINING}) || !has({_MESH}.sharding) || {_MESH}.sharding.stage == 3 || {_one('pp')}",
        "message": "training.parallelism.sharding.stage changes nothing in a pipeline; leave it out",
    },
    {
        "rule": f"!has({_TRAINING}) || !has({_COMMUNICATION}) || {_COMMUNICATION}.bucketMiB == 25"
        f" || (!has({_COMMUNICATION}.compression) && {_TRAINING}.precision == 'fp32' && {_one('tp')} && {_one('cp')}"
        f" && {_one('dpShard')} && (!has({_MESH}.dpReplicate) || {_MESH}.dpReplicate > 1))",
        "message": "training.communication.bucketMiB is used only for whole gradients in fp32 that replicas sum without"
        " compression; leave it out",
    },
]
"""The same rules for an API server, which applies them after it has filled in defaults, as far as they do not depend on
the number of ranks."""
