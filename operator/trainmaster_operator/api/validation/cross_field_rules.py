"""What the fields of a job must be to each other: one function for each kind of rule, over a whole spec.

The models raise the first breach that they find. `validation` asks for all of them, also of a spec of which some fields
can't be read (`partly`): there a rule that needs such a field tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmaster.contract.config import (
    BatchConfig,
    ParallelismConfig,
    best_refusal,
    divisors,
    multiples_near,
    share_of_each_rank,
)
from trainmaster.contract.launch.framework_packages import refusal
from trainmaster_operator.api.recovery_rules import unfit
from trainmaster_operator.api.validation.problem import Path, placed

if TYPE_CHECKING:
    from trainmaster_operator.api.job import JobSpec, WorkersSpec

Breach = tuple[Path, str]
"""(place within the spec of the field that a person would change, what is wrong)."""
Rule = Callable[["JobSpec"], Iterator[Breach]]


def of_failures(spec: JobSpec) -> Iterator[Breach]:
    """Rules of recovery that this job can't obey."""
    own_loop = spec.framework.value == "Trainmaster"
    for number, words in unfit(spec.recovery.rules, own_loop=own_loop, least=spec.workers.min):
        yield ("recovery", "rules", number), words


def of_framework(spec: JobSpec) -> Iterator[Breach]:
    """What a framework needs, and what belongs to another one."""
    if spec.framework.value == "Trainmaster":
        if spec.training is None:
            yield (), "framework Trainmaster needs spec.training"
        if spec.workers.restartCommand is not None:
            yield (
                ("workers", "restartCommand"),
                "framework Trainmaster goes on from its checkpoints by itself; leave it out",
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
    given = spec.container().get("env") or []
    variables = [str(variable.get("name")) for variable in given if isinstance(variable, dict)]
    if words := refusal(spec.framework.value, variables):
        yield ("workers", "template", "spec", "containers", 0, "env"), words


def of_the_best(spec: JobSpec) -> Iterator[Breach]:
    """A best checkpoint that nothing tells from the others."""
    if spec.training is not None and (words := best_refusal(spec.checkpoint, spec.training.evaluation)):
        yield placed(words)


def of_size(spec: JobSpec) -> Iterator[Breach]:
    """A number of ranks that the model's parallelism or the batch can't have."""
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
            return  # nobody knows among how many ranks a batch is shared
        ranks = parallelism.data_ranks(world_size)
    key, words = _share(batch.at(world_size), ranks, "ranks" if ranks == world_size else "data-parallel ranks")
    if words:
        yield (*where, "batch", key), words
    elif parallelism.inner and (refusal := _refusal(lambda: share_of_each_rank(parallelism, batch, world_size))):
        place, words = placed(refusal)
        yield (*where, *place), words


RULES: tuple[Rule, ...] = (of_failures, of_framework, of_the_best)
"""`of_size` is asked beside these: a plan of a layout doesn't need it."""


def _of_sizes(workers: WorkersSpec, parallelism: ParallelismConfig, batch: BatchConfig) -> Iterator[Breach]:
    """Told when none of the numbers of pods that an elastic job may have suits its model and its batch."""
    fewest, first = workers.min or 1, ""
    for replicas in range(workers.replicas, fewest - 1, -1):
        ranks = replicas * workers.ranksPerPod
        problem = _refusal(lambda ranks=ranks: share_of_each_rank(parallelism, batch, ranks))  # type: ignore[misc]
        if problem is None:
            return
        first = first or problem
    if first:
        yield ("workers",), f"no number of pods from {fewest} to {workers.replicas} will do: {first}"


def _share(batch: BatchConfig, ranks: int, what: str) -> tuple[str, str]:
    """(field to change, what is wrong) of a batch over the data-parallel ranks; what is wrong is "" if it divides."""
    share, rest = divmod(batch.global_, ranks)
    if rest:
        near = multiples_near(batch.global_, ranks)
        return "global", f"{batch.global_} doesn't divide by the job's {ranks} {what}; {near}"
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
