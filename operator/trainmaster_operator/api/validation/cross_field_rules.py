"""Rules across the fields of a job's spec, one function for each kind of rule.

The models raise the first violation. `job_validation` collects all of them, also for a spec in which some fields are
invalid (`partial_model`): a rule that needs such a field then reports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmaster.contract.config import (
    BatchConfig,
    ParallelismConfig,
    best_refusal,
    divisors,
    multiples_near_words,
    pod_counts_that_may_share,
    share_of_each_rank,
)
from trainmaster.contract.launch.framework_variables import refusal
from trainmaster_operator.api.recovery_rules import unfit
from trainmaster_operator.api.validation.problem import Path, placed

if TYPE_CHECKING:
    from trainmaster_operator.api.job_spec import JobSpec
    from trainmaster_operator.api.workers_spec import WorkersSpec

Breach = tuple[Path, str]
"""(path within the spec of the field that a person would change, what is wrong)."""
Rule = Callable[["JobSpec"], Iterator[Breach]]


def of_failures(spec: JobSpec) -> Iterator[Breach]:
    """Yield the recovery rules that this job cannot apply."""
    own_loop = spec.framework.value == "Trainmaster"
    for number, words in unfit(spec.recovery.rules, own_loop=own_loop, least=spec.workers.min):
        yield ("recovery", "rules", number), words


def of_variables(spec: JobSpec) -> Iterator[Breach]:
    """Yield the variables of the first container if they are no list of maps. No schema describes them, so an API
    server finds it only in a pod."""
    given = spec.container().get("env")
    if given is not None and not (isinstance(given, list) and all(isinstance(one, dict) for one in given)):
        yield ("workers", "template", "spec", "containers", 0, "env"), "a list of maps with name and value is expected"


def of_framework(spec: JobSpec) -> Iterator[Breach]:
    """Yield what the framework needs and lacks, and fields that belong to another framework."""
    if spec.framework.value == "Trainmaster":
        if spec.training is None:
            yield (), "framework Trainmaster needs spec.training"
        if spec.workers.restartCommand is not None:
            yield (
                ("workers", "restartCommand"),
                "framework Trainmaster continues from its checkpoints by itself; leave it out",
            )
        if spec.command():
            word = "command" if spec.container().get("command") else "args"
            yield (
                ("workers", "template", "spec", "containers", 0, word),
                "framework Trainmaster runs its own trainer, and would ignore this; leave it out, or set "
                "spec.framework to PyTorch if the command is a script of yours",
            )
        return
    if spec.training is not None:
        yield (), f"spec.training belongs to framework Trainmaster, not to {spec.framework.value}"
    if not spec.command():
        yield (
            (),
            f"framework {spec.framework.value} needs workers.template.spec.containers[0].command, "
            f"for example [python, train.py]",
        )
    given = spec.container().get("env")
    variables = [str(one.get("name")) for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    if words := refusal(spec.framework.value, variables):
        yield ("workers", "template", "spec", "containers", 0, "env"), words


def of_the_best(spec: JobSpec) -> Iterator[Breach]:
    """Yield checkpoint.keepBest if the job has nothing by which it can compare checkpoints."""
    if spec.training is not None and (words := best_refusal(spec.checkpoint, spec.training.evaluation)):
        yield placed(words)


def of_size(spec: JobSpec) -> Iterator[Breach]:
    """Yield the field to change if the parallelism or the batch does not allow the number of ranks."""
    if spec.framework.value != "Trainmaster" or spec.training is None:
        return
    workers, parallelism, batch = spec.workers, spec.training.parallelism, spec.training.batch
    if spec.elastic:
        yield from _of_sizes(workers, parallelism, batch)
        return
    world_size = workers.replicas * workers.ranksPerPod
    where: Path = ("training",)
    problem = _refusal(lambda: parallelism.resolve(world_size))
    if problem:
        made_of = f"workers.replicas {workers.replicas} x ranksPerPod {workers.ranksPerPod}"
        yield (*where, "parallelism"), f"{problem} ({made_of})"
    ranks = world_size
    if parallelism.inner:
        if problem:
            return  # Without a valid parallelism it is unknown how many ranks share a batch.
        ranks = parallelism.data_ranks(world_size)
    key, words = _share(batch.at(world_size), ranks, "ranks" if ranks == world_size else "data-parallel ranks")
    if words:
        yield (*where, "batch", key), words
    elif parallelism.inner and (refusal := _refusal(lambda: share_of_each_rank(parallelism, batch, world_size))):
        place, words = placed(refusal)
        yield (*where, *place), words


RULES: tuple[Rule, ...] = (of_failures, of_variables, of_framework, of_the_best)
"""The rules that hold for any number of ranks. `of_size` is called separately, because a layout plan does not need it.
"""


def _of_sizes(workers: WorkersSpec, parallelism: ParallelismConfig, batch: BatchConfig) -> Iterator[Breach]:
    """Yield one violation if no number of pods that an elastic job may have fits its model and its batch."""
    fewest, most = workers.min or 1, workers.replicas

    def problem(replicas: int) -> str | None:
        return _refusal(lambda: share_of_each_rank(parallelism, batch, replicas * workers.ranksPerPod))

    possible = pod_counts_that_may_share(parallelism, batch, workers.ranksPerPod, fewest, most)
    if fewest <= most and all(problem(replicas) for replicas in reversed(possible)):
        yield ("workers",), f"no number of pods from {fewest} to {most} is possible: {problem(most)}"


def _share(batch: BatchConfig, ranks: int, what: str) -> tuple[str, str]:
    """Return (field to change, what is wrong) for a batch that `ranks` data-parallel ranks share. The second is "" if
    the batch divides."""
    share, rest = divmod(batch.global_, ranks)
    if rest:
        near = multiples_near_words(batch.global_, ranks)
        return "global", f"{batch.global_} is not divisible by the job's {ranks} {what}; {near}"
    if batch.micro and share % batch.micro:
        return "micro", (
            f"{batch.micro} doesn't divide a rank's share of {share} sequences (global {share * ranks} / "
            f"{ranks} {what}); {', '.join(map(str, divisors(share)[-6:]))} would"
        )
    return "global", ""


def _refusal(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ValueError as error:
        return str(error)
    return None
