"""What the next leader reports about the time in which no operator led. Only it can report that, because no status
was written meanwhile."""

from __future__ import annotations

from trainmaster_operator.planning.eta_column import duration
from trainmaster_operator.planning.facts.job_state import Condition, JobState
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View

ABSENT = "OperatorAbsent"
SHORTEST_S = 30.0
"""Shortest absence in seconds that is reported. A change of leaders takes less, even if the machine of one is lost,
and the clocks of machines differ by less."""


def update(view: View, status: JobState) -> JobState:
    """Return `status` with condition OperatorAbsent when this leader first looks at a job that an earlier leader
    knew. The status of the condition is False, because an operator is there again."""
    absence = view.observed.absence
    if absence is None or absence.until - absence.since < SHORTEST_S or view.status.leaderEpoch >= view.observed.epoch:
        return status
    told = Condition(
        type=ABSENT,
        status="False",
        reason="OperatorReturned",
        message=f"no operator led from {_time(absence.since)} to {_time(absence.until)}, for "
        f"{duration(absence.until - absence.since)}; the operator wrote the status of that time afterwards",
        lastTransitionTime=rfc3339(absence.until),
        observedGeneration=view.observed.generation,
    )
    return status.model_copy(update={"conditions": [*(c for c in status.conditions if c.type != ABSENT), told]})


def _time(seconds: float) -> str:
    return rfc3339(seconds)[:19] + "Z"
