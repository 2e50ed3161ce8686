"""The dashboard for one job: what it does, what it needs, and what went wrong."""

from __future__ import annotations

from typing import Any

from charts.dashboards import signs
from charts.dashboards.layout import annotation, page, variable
from charts.dashboards.panels import (
    CATEGORY_COLORS,
    GREEN,
    ORANGE,
    PHASE_COLORS,
    RED,
    RUNG_COLORS,
    YELLOW,
    Column,
    Query,
    curves,
    number,
    rows,
)

IN = 'namespace="$namespace", job="$job"'
NO_JOB = "No operator tells of it"
NO_STEP = "No step yet"


def _of(name: str, more: str = "", by: str = "") -> str:
    """The value of the job, whichever operator leads."""
    labels = f"{IN}, {more}" if more else IN
    return f"max{f' by ({by})' if by else ''} (trainmaster_job_{name}{{{labels}}})"


def _rate(name: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate(trainmaster_job_{name}{{{IN}}}[$__rate_interval]))"


def job() -> Any:
    lost = _rate("lost_seconds_total")
    time = f"({_rate('useful_seconds_total')} + {lost})"
    return page(
        "job",
        "Trainmaster / Job",
        "One training job: what it does, what its ranks use, and what went wrong.",
        [
            variable("namespace", "Namespace", "trainmaster_job_phase", many=False),
            variable("job", "Job", 'trainmaster_job_phase{namespace="$namespace"}', many=False),
        ],
        [
            (
                "Now",
                100,
                [
                    number(
                        1,
                        "Phase",
                        "What the job does now. Good: Running, or Succeeded. Pending: see what it waits for. "
                        "Recovering for more than a minute, Held or Failed: see the cause beside it.",
                        Query(_of("phase", by="phase"), "{{phase}}"),
                        unit="none",
                        none=NO_JOB,
                        names=True,
                        colors=PHASE_COLORS,
                    ),
                    number(
                        2,
                        "Progress",
                        "Share of the steps that are done. Good: it rises. It falls after a failure only by the steps "
                        "that have to be done again.",
                        Query(f"{_of('step')} / {_of('total_steps')}"),
                        unit="percentunit",
                        none="Not known now",
                        decimals=1,
                    ),
                    number(
                        3,
                        "Goodput",
                        "Share of the time since the first step that went into new steps. Good: above 0.95. Below, see "
                        "where the time goes.",
                        Query(_of("goodput_ratio")),
                        unit="percentunit",
                        steps=((None, RED), (0.8, ORANGE), (0.9, YELLOW), (0.95, GREEN)),
                        none=NO_STEP,
                        decimals=1,
                    ),
                    number(
                        4,
                        "Failures",
                        "Failures since the job began. Good: 0. A number that grows each hour uses up the budget of "
                        "restarts: see the causes below.",
                        Query(f"sum({_of('failures_total', by='cause')})"),
                        unit="short",
                        steps=((None, GREEN), (1, YELLOW), (5, RED)),
                        none=NO_JOB,
                        decimals=0,
                    ),
                    number(
                        5,
                        "Steps done again",
                        "Steps since the job began that had to be repeated after failures. Good: fewer than the steps "
                        "between two checkpoints, per failure. If it is more, save more often.",
                        Query(_of("lost_steps_total")),
                        unit="short",
                        steps=((None, GREEN), (1, YELLOW)),
                        none=NO_JOB,
                        decimals=0,
                    ),
                    number(
                        6,
                        "Newest checkpoint",
                        "How old the newest one on storage is: that much work is lost if all pods are lost at once. "
                        "Good: below the interval of spec.checkpoint. Older than twice that: follow the runbook "
                        "job-checkpoint-old.",
                        Query(_of("checkpoint_age_seconds", 'tier="storage"')),
                        unit="s",
                        steps=((None, GREEN), (3600, YELLOW), (7200, RED)),
                        none="Not known now",
                    ),
                    rows(
                        26,
                        "What is wrong, and what to type first",
                        "Each sign that something is wrong with the job, with the command to type first and the "
                        "runbook that goes on from there. Good: empty. A sign can be seen here before its alert fires, "
                        "which waits until it has lasted.",
                        Query(signs.of_one_job(IN)),
                        [
                            Column("sign", "What is wrong", width=400),
                            Column("command", "Type this first", width=700),
                            Column("runbook", "Runbook"),
                        ],
                        span=24,
                        none="No sign that anything is wrong",
                        height=6,
                    ),
                    rows(
                        7,
                        "What the job says of itself",
                        "Its conditions that hold now, with their reasons. Good: Scheduled and Running, or Complete. "
                        "For the last words of a failed rank type `trainmaster status JOB`.",
                        Query(f"{_of('condition', by='condition, reason')} == 1"),
                        [
                            Column(
                                "condition",
                                "Condition",
                                colors={
                                    "Failed": RED,
                                    "Held": "purple",
                                    "ReconcileError": RED,
                                    "CheckpointFailed": RED,
                                    "CheckpointStalled": ORANGE,
                                    "Recovering": ORANGE,
                                    "Running": GREEN,
                                    "Complete": "blue",
                                },
                            ),
                            Column("reason", "Reason"),
                        ],
                        span=8,
                        none="No condition holds",
                        height=6,
                    ),
                    rows(
                        8,
                        "What it waits for",
                        "Why pods of the job do not run, and since when. Good: empty. The runbook job-pending says "
                        "what each reason means.",
                        Query(_of("pending_seconds", by="reason")),
                        [
                            Column("reason", "Reason"),
                            Column("A", "Has waited", unit="s", steps=((None, "text"), (600, YELLOW), (1800, RED))),
                        ],
                        span=8,
                        none="It waits for nothing",
                        height=6,
                    ),
                    rows(
                        9,
                        "Failures by cause",
                        "Failures since the job began, by their first cause. Good: empty. docs/failures.md says what "
                        "each cause is and what is done about it.",
                        Query(f"{_of('failures_total', by='cause')} > 0"),
                        [
                            Column("cause", "Cause"),
                            Column("A", "Failures", "short", ((None, YELLOW), (5, RED)), decimals=0),
                        ],
                        span=8,
                        sort="Failures",
                        none="None",
                        height=6,
                    ),
                ],
            ),
            (
                "Training",
                101,
                [
                    curves(
                        10,
                        "Step",
                        "Steps that are done, and how many there are to do. Good: a straight line. Flat: the job "
                        "stands still. A jump down: a restart from an earlier checkpoint.",
                        [Query(_of("step"), "done"), Query(_of("total_steps"), "to do")],
                        unit="short",
                        none=NO_STEP,
                    ),
                    curves(
                        11,
                        "Loss",
                        "The loss of the last step. Good: it falls. A jump after a restart would be a fault of ours: "
                        "restarts do not change the loss. A gap: it is not a number.",
                        Query(_of("loss"), "loss"),
                        unit="short",
                        least=None,
                        none="The job reports no loss",
                    ),
                    curves(
                        12,
                        "Throughput",
                        "Tokens per second, smoothed. Good: steady. A step down without a resize: look for a "
                        "straggler, for slow storage, or for a node that throttles.",
                        Query(_of("tokens_per_second"), "tokens"),
                        unit="short",
                        none="The job counts no tokens",
                    ),
                    curves(
                        13,
                        "Model FLOPs utilization",
                        "Share of the accelerators' peak that the model's arithmetic uses. Good: 0.3 to 0.6 for large "
                        "models. Empty if the peak of the device is not known.",
                        Query(_of("mfu_ratio"), "MFU"),
                        unit="percentunit",
                        none="The peak of the devices is not known",
                    ),
                ],
            ),
            (
                "What went wrong",
                102,
                [
                    curves(
                        14,
                        "Restarts",
                        "Restarts by how much was restarted: processes in their pods (inPlace), one pod, all pods "
                        "(full), with fewer pods (shrink), or for reasons that count nothing (free). Good: none, or "
                        "inPlace.",
                        Query(
                            f"sum by (rung) (increase(trainmaster_job_restarts_total{{{IN}}}[$__rate_interval]))",
                            "{{rung}}",
                        ),
                        unit="short",
                        events=True,
                        stacked=True,
                        colors=RUNG_COLORS,
                        none=NO_JOB,
                    ),
                    curves(
                        15,
                        "Where the time goes",
                        "The job's time since its first step, as shares: useful, and lost by what it was lost to. "
                        "Good: nearly all useful.",
                        [
                            Query(f"{_rate('useful_seconds_total')} / {time}", "useful"),
                            Query(
                                f"({_rate('lost_seconds_total', 'category')} > 0) / on () group_left () {time}",
                                "{{category}}",
                            ),
                        ],
                        unit="percentunit",
                        stacked=True,
                        most=1,
                        colors=CATEGORY_COLORS,
                        none=NO_STEP,
                    ),
                    curves(
                        16,
                        "Age of the newest checkpoint",
                        "By where it lies: storage, or the memory of the pods. Good: a saw-tooth whose teeth "
                        "are as high as the interval of saving. A line that only rises: saves fail.",
                        Query(_of("checkpoint_age_seconds", by="tier"), "{{tier}}"),
                        unit="s",
                        none="No checkpoint",
                    ),
                    curves(
                        17,
                        "Duration of a save",
                        "How long the newest save took, by where it went. Good: far below the interval of saving. If "
                        "storage grows and memory does not, the file system is slow.",
                        Query(_of("checkpoint_duration_seconds", by="tier"), "{{tier}}"),
                        unit="s",
                        none="No save has ended",
                    ),
                    curves(
                        18,
                        "Straggler",
                        "How many times as long as the median rank the slowest one computes. Good: no data, or below "
                        "1.2. Above 1.5 all ranks wait for it: the runbook job-straggler says which rank and node.",
                        Query(_of("straggler_slowdown"), "slowdown"),
                        unit="none",
                        decimals=2,
                        steps=((None, GREEN), (1.5, RED)),
                        none="No rank holds the others up",
                    ),
                    curves(
                        19,
                        "Workers",
                        "Pods that the job asks for, has, has ready, and spares. Good: ready equals desired.",
                        Query(_of("workers", by="state"), "{{state}}"),
                        unit="short",
                        decimals=0,
                        none="No pod of it runs",
                    ),
                ],
            ),
            (
                "What the ranks use",
                103,
                [
                    curves(
                        20,
                        "Processor cores",
                        "Cores that the job's pods keep busy, all together. Good: steady. At the pods' limit ranks are "
                        "throttled, and steps get slower.",
                        Query(_rate("cpu_seconds_total"), "cores"),
                        unit="short",
                        none="No pod reports",
                    ),
                    curves(
                        21,
                        "Memory",
                        "Of the rank, device and container that take most. Good: flat after the first steps. A line "
                        "that rises for hours is a leak, and ends with OutOfMemory.",
                        Query(_of("memory_bytes", by="what"), "{{what}}"),
                        unit="bytes",
                        none="No pod reports",
                    ),
                    curves(
                        22,
                        "Share of the memory limit",
                        "Of the fullest device and container. Good: below 0.9. Above 0.95 the kernel is about to end "
                        "the container with all of its ranks: raise the limit or make the micro-batch smaller.",
                        Query(_of("memory_used_ratio", by="what"), "{{what}}"),
                        unit="percentunit",
                        most=1,
                        steps=((None, GREEN), (0.95, RED)),
                        none="No container has a limit",
                    ),
                    curves(
                        23,
                        "Network",
                        "Bytes per second of all pods together. Good: a steady band. Zero in a job with several pods "
                        "means that its ranks do not talk to each other.",
                        [
                            Query(_rate("network_receive_bytes_total"), "received"),
                            Query(_rate("network_transmit_bytes_total"), "sent"),
                        ],
                        unit="Bps",
                        none="No pod reports",
                    ),
                    curves(
                        24,
                        "What accelerators do",
                        "Mean share of time in which the accelerators computed. Good: above 0.9 and steady. Empty "
                        "without NVIDIA devices.",
                        Query(_of("accelerator_utilization_ratio"), "busy"),
                        unit="percentunit",
                        most=1,
                        none="No accelerator reports",
                    ),
                    curves(
                        25,
                        "Memory of accelerators",
                        "Memory that is taken on the accelerators, all together. Good: flat after the first steps.",
                        Query(_of("accelerator_memory_bytes"), "taken"),
                        unit="bytes",
                        none="No accelerator reports",
                    ),
                ],
            ),
        ],
        [
            annotation(
                "Failures",
                f"sum by (cause) (changes(trainmaster_job_failures_total{{{IN}}}[$__rate_interval])) > 0",
                "Failure",
                "{{cause}}",
                RED,
            ),
            annotation(
                "Restarts",
                f"sum by (rung) (changes(trainmaster_job_restarts_total{{{IN}}}[$__rate_interval])) > 0",
                "Restart",
                "{{rung}}",
                ORANGE,
            ),
            annotation(
                "Resizes",
                f'max (changes(trainmaster_job_workers{{{IN}, state="desired"}}[$__rate_interval])) > 0',
                "Resize",
                "another number of workers is asked for",
                "blue",
            ),
        ],
    )
