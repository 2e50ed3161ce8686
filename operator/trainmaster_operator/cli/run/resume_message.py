"""What a run that continues with what an earlier one left prints when it starts."""

from __future__ import annotations

from trainmaster_operator.api.job_spec import Framework, JobSpec
from trainmaster_operator.cli.display.status_diff import described
from trainmaster_operator.cli.stored_state import last_torch_save
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState


def from_where(spec: JobSpec, status: JobState) -> str:
    """Return where a continued run begins. `status`: as the previous run left it. That run may have been killed
    between a checkpoint and the write of the status, so the rank that finds the newest checkpoint reports its step."""
    if spec.checkpoint.resume == "Never":
        return "from the first step, since spec.checkpoint.resume is Never"
    if status.checkpoint is not None:
        return f"from the newest checkpoint; the last one that was reported is that of step {status.checkpoint.step}"
    if spec.framework is Framework.TRAINMASTER:
        return "from the newest checkpoint, if there is one"
    return f"the script starts again, and continues from what it has saved itself{last_torch_save(status)}"


def what_failed_before(status: JobState) -> str:
    """Return what a person should know who runs a failed job again; "" if it did not fail. `status`: as the failed run
    left it."""
    if status.phase is not JobPhase.FAILED or status.lastFailure is None:
        return ""
    return (
        f"the run before this one failed ({described(status.lastFailure)}); failures are counted from 0 again, and if "
        "nothing was changed, this run may end in the same way"
    )
