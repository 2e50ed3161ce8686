"""Requested faults that never happened: a run that tested nothing must not look like one that passed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainmaster_operator.cli.fault_injection.run_faults import Fault
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobState

EXIT_CODE = 3
"""Exit code of a run that succeeded although a requested fault never happened."""


def sentences(waiting: Iterable[Fault], status: JobState) -> Iterator[str]:
    """Yield a sentence with the reason for each fault that did not happen. `status`: of the job at its end."""
    for fault in waiting:
        name = f"{fault['kind']}:rank={fault['rank']},step={fault['step']}"
        yield f"--fault {name} never happened: {_reason(fault, status)}"


def _reason(fault: Fault, status: JobState) -> str:
    highest, step, rank = status.progress.highestStep, fault["step"], fault["rank"]
    if not highest:
        # From outside, a script that resumes at its last step looks like a script whose steps cannot be counted.
        return (
            f"the job ended before step {step}, and no step of it was seen. A script that continues from a checkpoint "
            "of its own may have no steps left: --fresh does not delete a checkpoint outside of the output folder. "
            "Otherwise its steps cannot be counted: they are counted at optimizers of torch and in run.steps(), and "
            "not in processes that a script starts itself"
        )
    if highest < step:
        return f"the job ended after step {highest}, before step {step}"
    if restarts := status.restarts.total + status.restarts.free:
        return (
            f"rank {rank} never reached step {step}: its script counts steps from 0 in each process, and the "
            f"job restarted {counted(restarts, 'time')}"
        )
    return f"rank {rank} never reached step {step}, but another rank reached step {highest}"
