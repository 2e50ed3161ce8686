"""Where a run's time went, as a table: into steps that count, and lost to what."""

from __future__ import annotations

from trainmaster_operator.cli.display.recovery_tables import Table
from trainmaster_operator.cli.display.status_diff import seconds
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.times import seconds_of, since
from trainmaster_operator.planning.lifecycle.goodput import OTHER

STEPS = "steps"


def parts(status: JobState) -> list[tuple[str, float]]:
    """(what, seconds) from the first step to the last account, the largest loss first; [] before there is anything.

    The rest that nothing explains is the time between an account and the failure that followed, and the like.
    """
    if not status.firstStepAt or not status.accountedAt:
        return []
    wall = since(status.firstStepAt, seconds_of(status.accountedAt))
    lost = sorted(((s, name) for name, s in status.lost.items() if name != OTHER), key=lambda item: (-item[0], item[1]))
    rest = max(0.0, wall - status.usefulSeconds - sum(s for s, _ in lost))
    found = [(STEPS, status.usefulSeconds), *((name, s) for s, name in lost), (OTHER, rest)]
    return [(name, s) for name, s in found if s >= 0.0005]


def table(status: JobState) -> Table:
    found = parts(status)
    wall = sum(s for _, s in found)
    rows = tuple((name, seconds(s), f"{100 * s / wall:.1f} %") for name, s in found)
    return Table(("what", "time", "share"), rows, (False, True, True))
