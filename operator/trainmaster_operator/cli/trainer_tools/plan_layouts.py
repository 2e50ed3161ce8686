"""`trainmaster plan`: the layouts that a job can have, computed by the trainer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster.contract.config import TrainingSpec
from trainmaster_operator.api.memory_tier_spec import RamSpec
from trainmaster_operator.api.quantities import bytes_of
from trainmaster_operator.cli.job_files.validate_job import load_training
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.this_machine import trainer_process
from trainmaster_operator.cli.this_machine.trainer_checks import trainer
from trainmaster_operator.planning.facts.counted_nouns import counted

KINDS_OF_RECOMPUTATION = 3
"""How many kinds the planner compares with `--recompute all`."""

MOST_RANKS = 1_000_000
"""A number of ranks above it can have so many products of degrees that listing them takes minutes or hours."""


@dataclass(frozen=True)
class PlanOptions:
    """The arguments of `trainmaster plan`."""

    job: Path
    ranks: int | None  # None: the job's number.
    memory: str | None  # Memory of a rank, as a Kubernetes quantity.
    tflops: float | None  # Speed of a rank, in 10^12 operations per second; None: as measured on this machine.
    bandwidth: float | None  # What a rank can send, in 10^9 bytes per second; None: as measured on this machine.
    # What a rank can send to ranks on other nodes, in 10^9 bytes per second; None: as within a node.
    between_nodes: float | None
    all_recompute: bool  # Compare all kinds of recomputation, not only the job's.
    top: int
    measure: int  # Number of the best layouts that are measured with real processes.
    json: Path | None


def plan(options: PlanOptions) -> int:
    """List the layouts of a job. Return the exit code. Raise Refusal."""
    _check(options)
    config, workers, checkpoint = load_training(options.job)
    if config is None:
        raise Refusal(
            f"{options.job}: only a job with spec.training has a layout to plan; a script decides itself how its "
            f"ranks share the work"
        )
    if config.outer is not None:
        raise Refusal(
            f"{options.job}: spec.training.parallelism.island {config.parallelism.island}: to compare layouts, "
            f"remove island and communication.outer, and set --ranks to the number of ranks of one island"
        )
    trainer_process.check_installed("plan")
    ranks = workers.replicas * workers.ranksPerPod if options.ranks is None else options.ranks
    if ranks > MOST_RANKS:
        where, remedy = ("the job's number of ranks", "; set --ranks") if options.ranks is None else ("--ranks", "")
        raise Refusal(f"{where} {ranks}: layouts are listed for at most {MOST_RANKS} ranks{remedy}")
    count = _count_layouts(config, ranks) * (KINDS_OF_RECOMPUTATION if options.all_recompute else 1)
    sys.stderr.write(_announcement(options, count, ranks))
    sys.stderr.flush()
    arguments = ["--ranks", str(ranks)]
    figures = (
        ("--tflops", options.tflops),
        ("--bandwidth", options.bandwidth),
        ("--between-nodes", options.between_nodes),
    )
    for name, value in figures:
        arguments += [] if value is None else [name, str(value)]
    arguments += ["--ranks-per-node", str(workers.ranksPerPod)]
    arguments += ["--recompute", "all"] if options.all_recompute else []
    arguments += ["--top", str(options.top), "--measure", str(options.measure)]
    if options.memory is not None:
        arguments += ["--memory", str(bytes_of(options.memory))]
    arguments += ["--keep", str(checkpoint.keep)]
    ram = checkpoint.ram or RamSpec()
    if limit := ram.bytes_of_pod(workers.ranksPerPod):
        arguments += ["--ram-limit", str(limit), "--ram-peers", str(ram.copies)]
    if options.json is not None:
        arguments += ["--json", str(options.json)]
    return trainer_process.run("planner", arguments, config.model_dump_json().encode(), threads=1)


def _check(options: PlanOptions) -> None:
    if options.ranks is not None and options.ranks < 1:
        raise Refusal(f"--ranks {options.ranks}: at least 1 is expected")
    if options.memory is not None and not bytes_of(options.memory):
        raise Refusal(f"--memory {options.memory}: a quantity above 0 is expected, for example 40Gi or 512M")
    if options.measure < 0:
        raise Refusal(f"--measure {options.measure}: must be 0 or more")
    for name in ("tflops", "bandwidth", "between_nodes", "top"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise Refusal(f"--{name.replace('_', '-')} {value}: must be above 0")
    trainer_process.check_file("--json", options.json)


def _announcement(options: PlanOptions, count: int, ranks: int) -> str:
    """Return what is about to be done, which may take a while on a busy machine."""
    described = (options.tflops, options.bandwidth, options.between_nodes)
    measured = all(value is None for value in described)
    first = "if this machine has no GPU, the speed of its CPU is measured first; then " if measured else ""
    compared = f"{counted(count, 'layout')} of {counted(ranks, 'rank')} {'is' if count == 1 else 'are'} compared"
    return f"trainmaster: {first}{compared}\n"


def _count_layouts(config: TrainingSpec, ranks: int) -> int:
    """Raises Refusal if there is none."""
    layouts: Any = trainer("trainmaster.tools.planner.layouts")
    legal: Callable[..., Any] = layouts.legal
    count = sum(1 for _ in legal(config, ranks))
    if not count:
        raise Refusal(
            f"--ranks {ranks}: the job's model and batch have no layout for this number of ranks; "
            + _others(layouts.nearest(config, ranks))
        )
    return count


def _others(near: list[int]) -> str:
    """Return a clause that names numbers of ranks that have a layout."""
    match near:
        case []:
            return "nor have the numbers near it"
        case [one]:
            return f"{one} has one"
        case _:
            return f"the nearest numbers that have one are {' and '.join(map(str, near))}"
