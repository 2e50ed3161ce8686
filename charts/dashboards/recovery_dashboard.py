"""The dashboard of failures and recoveries: how often, for which causes, where their time goes, and what is lost."""

from __future__ import annotations

from typing import Any

from charts.dashboards.all_jobs_dashboard import PLACE
from charts.dashboards.colors import (
    BLUE,
    CATEGORY_COLORS,
    CAUSE_COLORS,
    ORANGE,
    PLAIN,
    RED,
    YELLOW,
)
from charts.dashboards.layout import page, took_over, variable
from charts.dashboards.panels import (
    FEW,
    GOODPUT,
    RUNG_COLORS,
    SUSPICION_COLORS,
    Column,
    Query,
    bars,
    curves,
    number,
    rows,
)
from charts.dashboards.promql import grown, happened, increase

IN = 'namespace=~"$namespace", job=~"$job"'
COUNTS = f'{IN}, rung!="free"'
NO_JOB = "No job is known in this time"


def _of(name: str) -> str:
    return f"trainmaster_job_{name}{{{IN}}}"


def _grown(name: str, by: str = "") -> str:
    """By how many seconds a counter of the jobs grew in the time shown."""
    return f"sum{f' by ({by})' if by else ''} ({increase(name, IN)})"


def recovery() -> Any:
    recent = "$__rate_interval"
    return page(
        "recovery",
        "Trainmaster / Recovery",
        "Failures and recoveries: how often, for which causes, where their time goes, and what is lost.",
        [
            variable("namespace", "Namespace", "trainmaster_job_phase", many=True),
            variable("job", "Job", 'trainmaster_job_phase{namespace=~"$namespace"}', many=True),
        ],
        [
            (
                "In the time shown",
                100,
                [
                    number(
                        1,
                        "Failures",
                        "Good: few, and of many causes. Many of one cause: the table of causes leads to the jobs.",
                        Query(grown("failures_total", IN)),
                        unit="short",
                        steps=FEW,
                        none=NO_JOB,
                        decimals=0,
                    ),
                    number(
                        2,
                        "Recoveries",
                        "Recoveries that came to a new step. Good: as many as there were failures. Fewer: jobs failed "
                        "for good, or recover now.",
                        Query(grown("recoveries_total", IN)),
                        unit="short",
                        none=NO_JOB,
                        decimals=0,
                    ),
                    number(
                        3,
                        "Mean time of a recovery",
                        "From the failure to the first step of the new round: the sum of the phases, of which no "
                        "second is counted twice. Good: seconds in place, below a minute for a new pod. If it is "
                        "longer, the panel by phase says which phase to look at.",
                        Query(f"{_grown('recovery_seconds_total')} / {_grown('recoveries_total')}"),
                        unit="s",
                        steps=((None, PLAIN), (60, YELLOW), (300, RED)),
                        none=NO_JOB,
                        decimals=1,
                    ),
                    number(
                        4,
                        "Steps done again",
                        "Good: fewer per failure than the steps between two checkpoints. If it is more, save more "
                        "often or turn on checkpoints in memory.",
                        Query(grown("lost_steps_total", IN)),
                        unit="short",
                        none=NO_JOB,
                        decimals=0,
                    ),
                    number(
                        5,
                        "Lost time",
                        "Time of all jobs that was of no use: down time, steps done again, and standing still for "
                        "saves. Good: minutes in a day of each job. The longest bar below is what to work on.",
                        Query(_grown("lost_seconds_total")),
                        unit="s",
                        none=NO_JOB,
                    ),
                    number(
                        6,
                        "Goodput",
                        "Share of the jobs' time since their first steps that went into new steps. Good: above 0.95. "
                        "Time in which a job is held, waits or hangs is not in it, and slow steps are useful.",
                        Query(
                            f"{_grown('useful_seconds_total')} "
                            f"/ ({_grown('useful_seconds_total')} + {_grown('lost_seconds_total')})"
                        ),
                        unit="percentunit",
                        steps=GOODPUT,
                        none=NO_JOB,
                        decimals=1,
                    ),
                ],
            ),
            (
                "Where the time goes",
                101,
                [
                    bars(
                        7,
                        "Lost time by what it was lost to",
                        "Good: short bars. The longest one is what to work on first. hardware: nodes and devices. "
                        "preemption: evictions. checkpoint: saving and loading. straggler: replacing a slow rank. "
                        "detection: until a failure is seen. queue: waiting for pods.",
                        Query(f"sort_desc({_grown('lost_seconds_total', by='category')} > 0)", "{{category}}"),
                        unit="s",
                        steps=((None, ORANGE),),
                        none="No time was lost",
                    ),
                    bars(
                        8,
                        "Mean recovery, by phase",
                        "Seconds per recovery in each phase, of the pod that the others waited for. Good: every phase "
                        "below some seconds. detect: shorten recovery.hang. schedule: keep spares. start: see "
                        "docs/failures.md on imports. load: keep checkpoints in memory.",
                        Query(
                            f"sort_desc({_grown('recovery_seconds_total', by='phase')} "
                            f"/ on () group_left () {_grown('recoveries_total')} > 0)",
                            "{{phase}}",
                        ),
                        unit="s",
                        steps=((None, BLUE), (10, YELLOW), (60, RED)),
                        none="No recovery in this time",
                    ),
                    curves(
                        9,
                        "Lost time at each moment",
                        "How many jobs' worth of time is lost at each moment, by what it is lost to: 2 means as if "
                        "two jobs stood still. Good: near 0. The time of a recovery is counted when it ends: a high "
                        "peak is a long one.",
                        Query(
                            f"sum by (category) (rate({_of('lost_seconds_total')}[{recent}])) > 0",
                            "{{category}}",
                        ),
                        unit="short",
                        axis="jobs",
                        stacked=True,
                        colors=CATEGORY_COLORS,
                        none="No time was lost",
                    ),
                    curves(
                        10,
                        "Time of recoveries",
                        "Of all jobs of the operator, whatever is chosen above: half of the recoveries, and 95 of "
                        "100, took at most so long. Good: the upper line is below a minute. A histogram knows only "
                        "between which limits each one was, so these are estimates; the mean above is exact.",
                        [
                            Query(
                                f"histogram_quantile({share}, sum by (le) "
                                f'(rate(trainmaster_recovery_seconds_bucket{{phase="total"}}[{recent}]))) > 0',
                                name,
                            )
                            for share, name in ((0.5, "half"), (0.95, "95 of 100"))
                        ],
                        unit="s",
                        none="No recovery in this time",
                    ),
                ],
            ),
            (
                "What fails",
                102,
                [
                    curves(
                        11,
                        "Failures by cause",
                        "Failures, each in one bar. Good: none. A cause that many jobs have at once comes from the "
                        "cluster: a node, the network, the storage. A cause of one job comes from the job.",
                        Query(happened(_of("failures_total"), "cause", "namespace, job, cause"), "{{cause}}"),
                        unit="short",
                        decimals=0,
                        events=True,
                        stacked=True,
                        colors=CAUSE_COLORS,
                        none="No failure in this time",
                    ),
                    curves(
                        12,
                        "Restarts by how much was restarted",
                        "Good: inPlace, which costs about a second. full and shrink mean that the budgets of the "
                        "smaller restarts are spent: the job is about to fail.",
                        Query(happened(_of("restarts_total"), "rung", "namespace, job, rung"), "{{rung}}"),
                        unit="short",
                        decimals=0,
                        events=True,
                        stacked=True,
                        colors=RUNG_COLORS,
                        none="No restart in this time",
                    ),
                    rows(
                        13,
                        "Failures by job and cause",
                        "In the time shown, most first. Good: empty. Type `trainmaster status JOB` for the rank, the "
                        "node and its last words.",
                        Query(f"{grown('failures_total', IN, by='namespace, job, cause')} > 0"),
                        [
                            *PLACE,
                            Column("cause", "Cause"),
                            Column("A", "Failures", "short", FEW, decimals=0),
                        ],
                        sort="Failures",
                        none="No failure in this time",
                    ),
                    rows(
                        14,
                        "Restarts that count, in the last hour",
                        "Good: empty. By default a job may restart in place 10 times, replace a pod 5 times and "
                        "restart all pods 2 times in an hour (spec.recovery.budget). A job at these numbers is about "
                        "to take the next rung, and fails after the last.",
                        Query(f"{grown('restarts_total', COUNTS, 'namespace, job, rung', '1h')} > 0"),
                        [
                            *PLACE,
                            Column("rung", "Restart", colors=RUNG_COLORS),
                            Column("A", "In an hour", "short", ((None, PLAIN), (2, YELLOW), (5, RED)), decimals=0),
                        ],
                        sort="In an hour",
                        none="No restart of a job in the last hour",
                    ),
                    curves(
                        15,
                        "Suspicions of a hang",
                        "Of all jobs of the operator. Good: none. raised, dropped because the ranks continued, "
                        "confirmed where nothing is done about it. Many that are dropped: the limit of recovery.hang "
                        "is too short for the jobs.",
                        Query(happened("trainmaster_hang_suspicions_total", "result"), "{{result}}"),
                        unit="short",
                        decimals=0,
                        events=True,
                        stacked=True,
                        colors=SUSPICION_COLORS,
                        none="No suspicion in this time",
                    ),
                    curves(
                        16,
                        "Saves that failed",
                        "Of all jobs of the operator, each rank's counted by itself. Good: none. Otherwise the "
                        "storage is full or away: a failure now would cost all work since the last good save.",
                        Query(happened("trainmaster_checkpoint_failures_total"), "failed saves"),
                        unit="short",
                        decimals=0,
                        events=True,
                        none=NO_JOB,
                    ),
                ],
            ),
        ],
        [took_over()],
        hours=24,
    )
