"""Requested faults that never happened: a run that tested nothing must not look like one that passed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainmaster_operator.cli.fault_injection.run_faults import Fault, FaultServer
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobState

EXIT_CODE = 3
"""Exit code of a run that succeeded although a requested fault never happened."""


def of_run(faults: FaultServer, crashes: Iterable[Fault], status: JobState) -> Iterator[str]:
    """Yield the same for all faults of a run. `crashes`: crashes of the operator whose write did not come."""
    yield from sentences(faults.waiting, status)
    for fault, why_not in faults.undone:
        yield f"--fault {_name(fault)} could not be done: {why_not}"
    for fault in crashes:
        writes = "no write" if fault["writes"] == 1 else f"fewer than {fault['writes']} writes"
        yield f"--fault {_name(fault)} never happened: the operator made {writes} after that step"


def sentences(waiting: Iterable[Fault], status: JobState) -> Iterator[str]:
    """Yield a sentence with the reason for each fault that did not happen. `status`: of the job at its end."""
    for fault in waiting:
        yield f"--fault {_name(fault)} never happened: {_reason(fault, status)}"


def _name(fault: Fault) -> str:
    return f"{fault['kind']}:rank={fault['rank']},step={fault['step']}"


def _reason(fault: Fault, status: JobState) -> str:
    highest, step, rank = status.progress.highestStep, fault["step"], fault["rank"]
    if not highest:
        # From outside, a script that resumes at its last step looks like a script whose steps cannot be counted.
        return (
            f"the job ended before step {step}, and no step of it was seen. A script that continues from a checkpoint "
            "of its own may have no steps left: --fresh does not delete a checkpoint outside of the output folder. "
            "Otherwise its steps cannot be counted: they are counted at optimizers of torch, Keras and TensorFlow, at "
            "boosting rounds of XGBoost, in run.steps() and by run.report(step=...), and not in processes that a "
            "script starts itself. Steps of JAX are counted only by run.report(step=...)"
        )
    if highest < step:
        return f"the job ended after step {highest}, before step {step}"
    seen = f"no step from {step} on was seen in rank {rank}, although the job reached step {highest}"
    if restarts := status.restarts.total + status.restarts.free:
        return (
            f"{seen}. The job restarted {counted(restarts, 'time')}, and after that its script continued from a later "
            "step, or its steps are counted from 0 in each process"
        )
    return (
        f"{seen}. Its script continued from a checkpoint of a later step, or the steps of this rank are not counted, "
        "for example because only another rank calls run.report(step=...)"
    )
