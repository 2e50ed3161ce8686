"""The dashboard for all jobs: what runs, what waits, what needs a person, and how much of the time is of use."""

from __future__ import annotations

from typing import Any

from charts.dashboards import signs
from charts.dashboards.colors import (
    CATEGORY_COLORS,
    GREEN,
    ORANGE,
    PHASE_COLORS,
    PLAIN,
    RED,
    YELLOW,
)
from charts.dashboards.layout import page, took_over, variable
from charts.dashboards.panels import (
    FEW,
    GOODPUT,
    NOBODY_LEADS,
    NOTHING_SCRAPED,
    WORKER_COLORS,
    Column,
    Query,
    bars,
    curves,
    number,
    rows,
)
from charts.dashboards.promql import if_known, increase, leaders, or_unknown

JOB_LINK = (
    "/d/trainmaster-job?var-namespace=${__data.fields.Namespace}&var-job=${__data.fields.Job}&${datasource:queryparam}"
)
PLACE = (Column("namespace", "Namespace"), Column("job", "Job", link=JOB_LINK))
IN = 'namespace=~"$namespace"'
ACTIVE = "Starting|Running|Recovering|Resizing|Suspending"


def _jobs(phases: str) -> str:
    """The number of jobs in these phases; 0 if an operator leads and has none; nothing if none leads."""
    return _count(f'max by (namespace, job) (trainmaster_job_phase{{{IN}, phase=~"{phases}"}})')


def _count(jobs: str) -> str:
    return if_known(f"count({jobs}) or vector(0)")


def _goodput() -> str:
    """The share of time since the first steps that was of use, in the time shown."""
    useful, lost = (f"sum({increase(name, IN)})" for name in ("useful_seconds_total", "lost_seconds_total"))
    return if_known(f"{useful} / ({useful} + {lost})")


def _ready() -> str:
    """The mean over the jobs that are to run of the share of their pods that are ready: 0 for a job without a round."""
    ready, desired = (
        f'max by (namespace, job) (trainmaster_job_workers{{{IN}, state="{state}"}})' for state in ("ready", "desired")
    )
    to_run = f'max by (namespace, job) (trainmaster_job_phase{{{IN}, phase=~"Pending|Held|{ACTIVE}"}})'
    return if_known(f"avg(clamp_max({ready} / {desired}, 1) or 0 * {to_run})")


def fleet() -> Any:
    # A job that has ended, or is held, is in no curve any more, though its last seconds are still in the window.
    runs = f'on (namespace, job) trainmaster_job_phase{{{IN}, phase=~"{ACTIVE}"}}'
    useful = f"sum(rate(trainmaster_job_useful_seconds_total{{{IN}}}[$__rate_interval]) and {runs})"
    lost = f"(rate(trainmaster_job_lost_seconds_total{{{IN}}}[$__rate_interval]) and {runs})"
    return page(
        "fleet",
        "Trainmaster / Fleet",
        "All training jobs: what runs, what waits, what needs a person, and how much of the time is of use.",
        [variable("namespace", "Namespace", "trainmaster_job_phase", many=True)],
        [
            (
                "Now",
                100,
                [
                    number(
                        1,
                        "Jobs that need a person",
                        "Jobs that go on badly, or not at all, until a person does something: failed or held, an image "
                        "that can't be pulled, a quota without room, failures again and again, no step, a straggler, "
                        "slow storage. Good: 0. The table below names each one.",
                        Query(_count(signs.jobs_that_need_a_person(IN))),
                        unit="short",
                        none=NOBODY_LEADS,
                        steps=((None, GREEN), (1, RED)),
                    ),
                    number(
                        2,
                        "Jobs that wait",
                        "Jobs whose pods do not all run yet. Good: 0, or a number that falls. If it grows, the table "
                        "of waiting jobs says what each one waits for.",
                        Query(_jobs("Pending")),
                        unit="short",
                        none=NOBODY_LEADS,
                        steps=((None, GREEN), (1, YELLOW)),
                    ),
                    number(
                        3,
                        "Jobs that train",
                        "Jobs with running ranks, those that recover at this moment included. Good: as many as people "
                        "started. If it falls and nobody ended a job, look at the jobs that need a person.",
                        Query(_jobs(ACTIVE)),
                        unit="short",
                        none=NOBODY_LEADS,
                    ),
                    number(
                        4,
                        "Goodput",
                        "Share of the time since the jobs' first steps that went into new steps, in the time shown. "
                        "Good: above 0.95. Below 0.9 the panel of lost time says what the rest goes to. It is never "
                        "green: time in which a job is held, waits or hangs is not in it, and slow steps are useful.",
                        Query(_goodput()),
                        unit="percentunit",
                        steps=GOODPUT,
                        none="Not known: no step, or nobody leads",
                        decimals=1,
                    ),
                    number(
                        5,
                        "Ready workers, mean of jobs",
                        "The share of its pods that a job has ready, as the mean over all jobs that are to run. A job "
                        "that waits for its pods, or is held, counts as 0. Good: 1. If it is lower, the tables below "
                        "say which jobs wait and why.",
                        Query(_ready()),
                        unit="percentunit",
                        steps=((None, RED), (0.8, YELLOW), (0.99, PLAIN)),
                        none="No job is to run, or nobody leads",
                    ),
                    number(
                        6,
                        "Operators that lead",
                        "In the namespace of a release; of several releases, the one with the worst number. Good: 1. "
                        "With 0, running jobs continue to train, but nothing recovers and no job starts: follow the "
                        "runbook operator-down.",
                        Query(leaders()),
                        unit="short",
                        steps=((None, RED), (1, GREEN), (2, RED)),
                    ),
                    rows(
                        17,
                        "What is wrong, and what to type first",
                        "Each sign that something is wrong with a job, or with an operator in any namespace, with the "
                        "command to type first and the runbook that goes on from there. Good: empty. A sign can be "
                        "seen here before its alert fires, which waits until it has lasted.",
                        Query(signs.of_jobs(IN)),
                        [
                            Column("namespace", "Namespace", width=150),
                            Column("job", "Job", link=JOB_LINK, width=110),
                            Column("sign", "What is wrong", width=376, patterns=signs.COLORS),
                            Column("command", "Type this first", width=585),
                            Column("runbook", "Runbook", width=145),
                        ],
                        span=24,
                        sort="+Namespace",
                        none="No sign that anything is wrong",
                    ),
                    rows(
                        7,
                        "Jobs that stand, and why",
                        "Each job that failed, is held or can't be handled, with the cause. Good: empty. `trainmaster "
                        "status JOB` shows the last words of the rank that failed.",
                        Query(
                            or_unknown(
                                "max by (namespace, job, condition, reason) "
                                f'(trainmaster_job_condition{{{IN}, condition=~"Failed|Held|ReconcileError"}}) == 1 '
                                "or label_replace(max by (namespace, job) (trainmaster_job_phase"
                                f'{{{IN}, phase="Unreadable"}}), "condition", "Unreadable", "", "")',
                                "reason",
                            )
                        ),
                        [
                            *PLACE,
                            Column(
                                "condition",
                                "State",
                                colors={"Failed": RED, "Held": "purple", "ReconcileError": ORANGE, "Unreadable": RED},
                            ),
                            Column("reason", "Cause"),
                        ],
                        sort="+Namespace",
                    ),
                    rows(
                        8,
                        "Jobs that wait, and for what",
                        "Each job whose pods do not all run, since when and why. Good: empty, or seconds. The runbook "
                        "job-pending says what each reason means.",
                        Query(
                            or_unknown(
                                f"max by (namespace, job, reason) (trainmaster_job_pending_seconds{{{IN}}})", "reason"
                            )
                        ),
                        [
                            *PLACE,
                            Column("reason", "Reason"),
                            Column("A", "Has waited", unit="s", steps=((None, PLAIN), (600, YELLOW), (1800, RED))),
                        ],
                        sort="Has waited",
                    ),
                ],
            ),
            (
                "Over time",
                101,
                [
                    curves(
                        9,
                        "Jobs by phase",
                        "Good: mostly Running. A band of Recovering that stays means that jobs fail again and again; a "
                        "band of Pending that grows means that the cluster has no place.",
                        Query(
                            f"count by (phase) (max by (namespace, job, phase) (trainmaster_job_phase{{{IN}}}))",
                            "{{phase}}",
                        ),
                        unit="short",
                        stacked=True,
                        colors=PHASE_COLORS,
                        decimals=0,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        10,
                        "Where the time goes",
                        "The jobs' time since their first steps, as shares: useful, and lost by what it was lost to. "
                        "Good: nearly all useful. The time of a recovery is counted when it ends, so it is seen "
                        "some seconds after it. The dashboard Recovery shows the lost part alone.",
                        [
                            Query(f"{useful} / ({useful} + sum({lost}))", "useful"),
                            Query(
                                f"(sum by (category) ({lost}) > 0) / on () group_left () ({useful} + sum({lost}))",
                                "{{category}}",
                            ),
                        ],
                        unit="percentunit",
                        stacked=True,
                        most=1,
                        colors=CATEGORY_COLORS,
                    ),
                    curves(
                        11,
                        "Workers",
                        "Of the jobs that train, without those that wait: pods that they ask for (desired), that are "
                        "in the round (current), that have an agent (ready), and spares. Good: ready equals desired. A "
                        "gap that stays is a lack of nodes or quota.",
                        Query(
                            f"sum by (state) (max by (namespace, job, state) (trainmaster_job_workers{{{IN}}}))",
                            "{{state}}",
                        ),
                        unit="short",
                        colors=WORKER_COLORS,
                        decimals=0,
                    ),
                    curves(
                        12,
                        "What accelerators do",
                        "Mean share of time in which each job's accelerators computed. Good: steady and above 0.9. A "
                        "job at 0 that is Running waits: for data, for a straggler or for storage. Empty without "
                        "NVIDIA devices.",
                        Query(
                            f"max by (namespace, job) (trainmaster_job_accelerator_utilization_ratio{{{IN}}})",
                            "{{namespace}}/{{job}}",
                        ),
                        unit="percentunit",
                        most=1,
                        none="No job has accelerators that report",
                    ),
                    curves(
                        13,
                        "Waiting jobs by queue",
                        "Jobs that wait, by the queue that they were submitted to. Good: every queue falls to 0 now "
                        "and then. A queue that only grows has too small a quota.",
                        Query(
                            "sum by (queue) (max by (namespace, job, queue) "
                            f'(trainmaster_job_info{{{IN}, queue!=""}}) * on (namespace, job) group_left () '
                            f'max by (namespace, job) (trainmaster_job_phase{{{IN}, phase="Pending"}}))',
                            "{{queue}}",
                        ),
                        unit="short",
                        decimals=0,
                        none="No job waits in a queue",
                    ),
                    curves(
                        14,
                        "Throughput",
                        "Tokens per second of all jobs that count tokens and make steps. Good: steady. A step down is "
                        "a job that ended, stands, shrank or slowed down: the table below says which.",
                        Query(f"sum(max by (namespace, job) (trainmaster_job_tokens_per_second{{{IN}}}))", "tokens"),
                        unit="short",
                        none="No job counts tokens",
                    ),
                ],
            ),
            (
                "Which jobs",
                102,
                [
                    bars(
                        15,
                        "Jobs with the lowest goodput",
                        "The eight jobs that lose most of their time, since their first step. Good: all above 0.95. "
                        "Open the dashboard Job of the first one and look at where its time goes.",
                        Query(
                            f"bottomk(8, max by (namespace, job) (trainmaster_job_goodput_ratio{{{IN}}}))",
                            "{{namespace}}/{{job}}",
                        ),
                        unit="percentunit",
                        steps=GOODPUT,
                        most=1,
                        span=8,
                        none="No job is known to have made a step",
                        height=10,
                    ),
                    rows(
                        16,
                        "Jobs",
                        "All jobs that are not over, and those that ended in the last hours, the one with most signs "
                        "of a problem first. Good: no signs, goodput above 0.95 and no failures. The checkpoint is the "
                        "newest one on storage: that much work is lost if all pods are lost at once.",
                        [
                            Query(f"max by (namespace, job, phase) (trainmaster_job_phase{{{IN}}})"),
                            Query(f"max by (namespace, job) (trainmaster_job_goodput_ratio{{{IN}}})"),
                            Query(
                                "sum by (namespace, job) (max by (namespace, job, cause) "
                                f"(trainmaster_job_failures_total{{{IN}}}))"
                            ),
                            Query(
                                "max by (namespace, job) "
                                f'(trainmaster_job_checkpoint_age_seconds{{{IN}, tier="storage"}})'
                            ),
                            Query(f"{signs.by_job(IN)} or 0 * max by (namespace, job) (trainmaster_job_phase{{{IN}}})"),
                        ],
                        [
                            *PLACE,
                            Column("phase", "Phase", colors=PHASE_COLORS, width=100),
                            Column("E", "Signs", "short", ((None, PLAIN), (1, RED)), decimals=0, width=75),
                            Column("B", "Goodput", "percentunit", GOODPUT, width=95),
                            Column("C", "Failures", "short", FEW, decimals=0, width=95),
                            Column("D", "Newest checkpoint on storage", "s", width=235),
                        ],
                        span=16,
                        sort="Signs",
                        none="No job is known: no operator leads, or there is none",
                        height=10,
                    ),
                ],
            ),
        ],
        [took_over()],
    )
