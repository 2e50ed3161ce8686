"""The dashboard for all jobs: what runs, what waits, what needs a person, and how much of the time is of use."""

from __future__ import annotations

from typing import Any

from charts.dashboards import signs
from charts.dashboards.layout import page, variable
from charts.dashboards.panels import (
    CATEGORY_COLORS,
    GREEN,
    NOBODY_LEADS,
    NOTHING_SCRAPED,
    ORANGE,
    PHASE_COLORS,
    RED,
    YELLOW,
    Column,
    Query,
    bars,
    curves,
    number,
    rows,
)

JOB_LINK = (
    "/d/trainmaster-job?var-namespace=${__data.fields.Namespace}&var-job=${__data.fields.Job}&${datasource:queryparam}"
)
PLACE = (Column("namespace", "Namespace"), Column("job", "Job", link=JOB_LINK))
IN = 'namespace=~"$namespace"'
ACTIVE = "Starting|Running|Recovering|Resizing|Suspending"


def _jobs(phases: str) -> str:
    """The number of jobs in these phases; 0 if an operator leads and has none; nothing if none leads."""
    series = f'max by (namespace, job) (trainmaster_job_phase{{{IN}, phase=~"{phases}"}})'
    return f"count({series}) or 0 * (sum(trainmaster_leader) > 0)"


def _share(kind: str, window: str) -> str:
    """The share of time since the first steps that was of use, or was lost to each category."""
    useful = f"sum({kind}(trainmaster_job_useful_seconds_total{{{IN}}}[{window}]))"
    lost = f"sum({kind}(trainmaster_job_lost_seconds_total{{{IN}}}[{window}]))"
    return f"{useful} / ({useful} + {lost})"


def fleet() -> Any:
    useful = f"sum(rate(trainmaster_job_useful_seconds_total{{{IN}}}[$__rate_interval]))"
    lost = f"rate(trainmaster_job_lost_seconds_total{{{IN}}}[$__rate_interval])"
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
                        "Jobs that failed in the last hours, are held, or have a manifest that can't be read. Good: "
                        "0. Otherwise the table below names each job and the cause; the runbooks job-failed and "
                        "job-held say what to do.",
                        Query(_jobs("Failed|Held|Unreadable")),
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
                        "Good: above 0.95. Below 0.9 the panel of lost time says what the rest goes to.",
                        Query(_share("increase", "$__range")),
                        unit="percentunit",
                        steps=((None, RED), (0.8, ORANGE), (0.9, YELLOW), (0.95, GREEN)),
                        decimals=1,
                    ),
                    number(
                        5,
                        "Workers that are ready",
                        "Ready pods of the jobs that train, as a share of the pods that they ask for. Good: 1. If it "
                        "is lower, jobs lost pods or shrank, and wait for nodes: see the panel of workers.",
                        Query(
                            f'sum(max by (namespace, job) (trainmaster_job_workers{{{IN}, state="ready"}})) '
                            f'/ sum(max by (namespace, job) (trainmaster_job_workers{{{IN}, state="desired"}}))'
                        ),
                        unit="percentunit",
                        steps=((None, RED), (0.8, YELLOW), (0.99, GREEN)),
                        none="No job trains",
                    ),
                    number(
                        6,
                        "Operators that lead",
                        "Good: 1. With 0, running jobs continue to train, but nothing recovers and no job starts: "
                        "follow the runbook operator-down.",
                        Query("sum(trainmaster_leader)"),
                        unit="short",
                        steps=((None, RED), (1, GREEN), (2, RED)),
                    ),
                    rows(
                        17,
                        "What is wrong, and what to type first",
                        "Each sign that something is wrong with a job, or that no operator leads, with the command to "
                        "type first and the runbook that goes on from there. Good: empty. A sign can be seen here "
                        "before its alert fires, which waits until it has lasted.",
                        Query(signs.of_jobs(IN)),
                        [
                            *PLACE,
                            Column("sign", "What is wrong", width=340),
                            Column("command", "Type this first", width=560),
                            Column("runbook", "Runbook"),
                        ],
                        span=24,
                        sort="+Namespace",
                        none="No sign that anything is wrong",
                    ),
                    rows(
                        7,
                        "Jobs that need a person, and why",
                        "Each job that failed, is held or can't be handled, with the cause. Good: empty. `trainmaster "
                        "status JOB` shows the last words of the rank that failed.",
                        Query(
                            "max by (namespace, job, condition, reason) "
                            f'(trainmaster_job_condition{{{IN}, condition=~"Failed|Held|ReconcileError"}}) == 1 '
                            "or label_replace(max by (namespace, job) "
                            f'(trainmaster_job_phase{{{IN}, phase="Unreadable"}}), "condition", "Unreadable", "", "")'
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
                        Query(f"max by (namespace, job, reason) (trainmaster_job_pending_seconds{{{IN}}})"),
                        [
                            *PLACE,
                            Column("reason", "Reason"),
                            Column("A", "Has waited", unit="s", steps=((None, "text"), (600, YELLOW), (1800, RED))),
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
                        "Good: nearly all useful. The dashboard Recovery shows the lost part alone.",
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
                        "Of the jobs that train: pods that they ask for (desired), that are in the round (current), "
                        "that have an agent (ready), and spares. Good: ready equals desired. A gap that stays is a "
                        "lack of nodes or quota.",
                        Query(
                            f"sum by (state) (max by (namespace, job, state) (trainmaster_job_workers{{{IN}}}))",
                            "{{state}}",
                        ),
                        unit="short",
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
                        "Tokens per second of all jobs that count tokens. Good: steady. A step down is a job that "
                        "ended, shrank or slowed down: the table below says which.",
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
                        "The ten jobs that lose most of their time, since their first step. Good: all above 0.95. "
                        "Open the dashboard Job of the first one and look at where its time goes.",
                        Query(
                            f"bottomk(10, max by (namespace, job) (trainmaster_job_goodput_ratio{{{IN}}}))",
                            "{{namespace}}/{{job}}",
                        ),
                        unit="percentunit",
                        steps=((None, RED), (0.8, ORANGE), (0.9, YELLOW), (0.95, GREEN)),
                        most=1,
                        span=8,
                        none="No job that is known has made a step",
                    ),
                    rows(
                        16,
                        "Jobs",
                        "All jobs that are not over, and those that ended in the last hours. Good: goodput above 0.95 "
                        "and no failures. A high number of failures or an old checkpoint is the job to look at first.",
                        [
                            Query(f"max by (namespace, job, phase) (trainmaster_job_phase{{{IN}}})"),
                            Query(f"max by (namespace, job) (trainmaster_job_goodput_ratio{{{IN}}})"),
                            Query(
                                "sum by (namespace, job) (max by (namespace, job, cause) "
                                f"(trainmaster_job_failures_total{{{IN}}}))"
                            ),
                            Query(f"min by (namespace, job) (trainmaster_job_checkpoint_age_seconds{{{IN}}})"),
                        ],
                        [
                            *PLACE,
                            Column("phase", "Phase", colors=PHASE_COLORS),
                            Column("B", "Goodput", "percentunit", ((None, RED), (0.8, ORANGE), (0.95, GREEN))),
                            Column("C", "Failures", "short", ((None, GREEN), (1, YELLOW), (5, RED)), decimals=0),
                            Column("D", "Last checkpoint", "s"),
                        ],
                        span=16,
                        sort="Failures",
                        none="No operator tells of a job",
                    ),
                ],
            ),
        ],
    )
