"""The section about recoveries in a report: what failed, what was done, how long each phase took, and what the columns
mean."""

from __future__ import annotations

from trainmaster_operator.cli.display import recovery_tables
from trainmaster_operator.cli.display.number_words import seconds
from trainmaster_operator.cli.report import html_page
from trainmaster_operator.cli.report.svg_chart import bars_with_legend
from trainmaster_operator.planning.facts.job_state import JobState

_COLUMNS = {
    "round": "one start of all ranks; each restart begins the next round.",
    "reached": "the highest step that any rank had completed; the rank that failed may have completed one step less.",
    "resumed": "the step of the checkpoint from which training continued.",
    "source": "where that checkpoint was: in the memory of the pod, in that of another pod (peer), or on storage.",
    "steps lost": "steps after the checkpoint, up to the one that was reached, which had to run a second time.",
    "total": "the time from the failure to the end of the first step of the new round. Under "
    "“Where the time went” it is longer: it begins with the last step that was completed before the failure.",
}
"""The meaning of the columns in the table of recoveries."""


def section(status: JobState) -> str:
    """Return the section for a status with at least one recovery."""
    cells = recovery_tables.actions(status.recoveries)
    rungs = dict.fromkeys(r.rung for r in status.recoveries)
    content = [
        html_page.table(cells.header, cells.rows, cells.numeric),
        html_page.note(
            "The operator tries the smallest restart first. Each larger one is the next rung of the ladder: it is "
            "tried when a smaller one cannot help, or was tried too often."
        ),
        html_page.meanings((recovery_tables.ACTIONS[rung], recovery_tables.MEANINGS[rung]) for rung in rungs),
        html_page.meanings((name, _COLUMNS[name]) for name in cells.header if name in _COLUMNS),
    ]
    shares = [
        (f"round {r.round}", [(recovery_tables.named(p), r.clock[p]) for p in recovery_tables.PHASES if p in r.clock])
        for r in status.recoveries
        if r.clock
    ]
    if shares:
        clocks = recovery_tables.clocks(status.recoveries)
        content += [
            html_page.heading("Phase by phase"),
            *bars_with_legend(shares, seconds),
            html_page.table(clocks.header, clocks.rows, clocks.numeric),
            html_page.note(
                "Where pods wait for each other, a phase has the time of the pod that the others waited for, so no "
                "second is counted twice."
            ),
        ]
    every = status.restarts.total + status.restarts.free
    if every > len(status.recoveries):
        content.append(html_page.note(f"The last {len(status.recoveries)} of {every} restarts."))
    return html_page.section("Recoveries", *content)
