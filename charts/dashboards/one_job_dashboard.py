"""The dashboard for one job: what it does, what it needs, and what went wrong."""

from __future__ import annotations

from typing import Any

from charts.dashboards import signs
from charts.dashboards.all_jobs_dashboard import ACTIVE
from charts.dashboards.colors import (
    CATEGORY_COLORS,
    GREEN,
    ORANGE,
    PHASE_COLORS,
    PLAIN,
    RED,
    YELLOW,
)
from charts.dashboards.layout import annotation, page, took_over, variable
from charts.dashboards.panels import (
    FEW,
    GOODPUT,
    RUNG_COLORS,
    TIER_COLORS,
    WHAT_COLORS,
    WORKER_COLORS,
    Column,
    Query,
    curves,
    number,
    rows,
)
from charts.dashboards.promql import before, happened, or_unknown

IN = 'namespace="$namespace", job="$job"'
NO_JOB = "Not known: no operator tells of it"
NO_STEP = "No step is known"
OF_JOB = "namespace, job"


def _of(name: str, more: str = "", by: str = "") -> str:
    """The value of the job, whichever operator leads."""
    labels = f"{IN}, {more}" if more else IN
    return f"max{f' by ({by})' if by else ''} (trainmaster_job_{name}{{{labels}}})"


def _last(name: str, more: str = "") -> str:
    """The last value that is known in the time shown, also of a job that is held or over."""
    labels = f"{IN}, {more}" if more else IN
    return f"max(last_over_time(trainmaster_job_{name}{{{labels}}}[$__range]))"


def _rate(name: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate(trainmaster_job_{name}{{{IN}}}[$__rate_interval]))"


def job() -> Any:
    # It ends with the job, though the last seconds are still in the window.
    runs = f'and on () max(trainmaster_job_phase{{{IN}, phase=~"{ACTIVE}"}})'
    desired = f'trainmaster_job_workers{{{IN}, state="desired"}}'
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
                        span=3,
                    ),
                    number(
                        2,
                        "Progress",
                        "Share of the steps that are done, as far as it is known last. Good: it rises. It falls after "
                        "a failure only by the steps that have to be done again.",
                        Query(f"{_last('step')} / {_last('total_steps')}"),
                        unit="percentunit",
                        none=NO_STEP,
                        decimals=1,
                        span=3,
                    ),
                    number(
                        3,
                        "Goodput",
                        "Share of the time since the first step that went into new steps. Good: above 0.95. Below, see "
                        "where the time goes. Time in which the job is held or hangs is not in it, and slow steps are "
                        "useful: see the throughput.",
                        Query(_of("goodput_ratio")),
                        unit="percentunit",
                        steps=GOODPUT,
                        none=NO_STEP,
                        decimals=1,
                        span=3,
                    ),
                    number(
                        4,
                        "Failures",
                        "Failures since the job began. Good: 0. A number that grows each hour uses up the budget of "
                        "restarts: see the causes below.",
                        Query(f"sum({_of('failures_total', by='cause')})"),
                        unit="short",
                        steps=FEW,
                        none=NO_JOB,
                        decimals=0,
                        span=3,
                    ),
                    number(
                        5,
                        "Steps done again",
                        "Steps since the job began that had to be repeated after failures. Good: fewer than the steps "
                        "between two checkpoints, per failure. If it is more, save more often.",
                        Query(_of("lost_steps_total")),
                        unit="short",
                        steps=((None, PLAIN), (1, YELLOW)),
                        none=NO_JOB,
                        decimals=0,
                        span=3,
                    ),
                    number(
                        6,
                        "Newest checkpoint on storage",
                        "How old the newest one on storage is: that much work is lost if all pods are lost at once. "
                        "Good: below the interval of spec.checkpoint. Older than twice that: follow the runbook "
                        "job-checkpoint-old.",
                        Query(_of("checkpoint_age_seconds", 'tier="storage"')),
                        unit="s",
                        steps=((None, PLAIN), (3600, YELLOW), (7200, RED)),
                        none="Not known: the job does not run",
                        span=5,
                    ),
                    number(
                        27,
                        "Last step on storage",
                        "The newest step that is saved on storage, as far as it is known last: there the job goes on "
                        "after all its pods are lost, or when it is submitted again. Good: close to the steps done.",
                        Query(_last("checkpoint_step", 'tier="storage"')),
                        unit="none",
                        none="No save is known",
                        decimals=0,
                    ),
                    rows(
                        26,
                        "What is wrong, and what to type first",
                        "Each sign that something is wrong with the job, with the command to type first and the "
                        "runbook that goes on from there. Good: empty. A sign can be seen here before its alert fires, "
                        "which waits until it has lasted.",
                        Query(signs.of_one_job(IN)),
                        [
                            Column("sign", "What is wrong", width=420, patterns=signs.COLORS),
                            Column("command", "Type this first", width=740),
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
                        Query(or_unknown(f"{_of('condition', by='condition, reason')} == 1", "reason")),
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
                        none="No condition holds: see what it waits for",
                        height=6,
                    ),
                    rows(
                        8,
                        "What it waits for",
                        "Why pods of the job do not run, and since when. Good: empty. The runbook job-pending says "
                        "what each reason means.",
                        Query(or_unknown(_of("pending_seconds", by="reason"), "reason")),
                        [
                            Column("reason", "Reason"),
                            Column("A", "Has waited", unit="s", steps=((None, PLAIN), (600, YELLOW), (1800, RED))),
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
                        Query(or_unknown(f"{_of('failures_total', by='cause')} > 0", "cause")),
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
                        "restarts do not change the loss. A gap: the job makes no step, or the loss is not a number.",
                        Query(_of("loss"), "loss"),
                        unit="short",
                        least=None,
                        none="No loss is known: no step, or a script that reports none",
                    ),
                    curves(
                        12,
                        "Throughput",
                        "Tokens per second, smoothed. Good: steady. A step down without a resize: look for a "
                        "straggler, for slow storage, or for a node that throttles. A gap: the job makes no step.",
                        Query(_of("tokens_per_second"), "tokens"),
                        unit="short",
                        none="No tokens are known: no step, or a script that counts none",
                    ),
                    curves(
                        13,
                        "Model FLOPs utilization",
                        "Share of the accelerators' peak that the model's arithmetic uses. Good: 0.3 to 0.6 for large "
                        "models. Empty if the peak of the device is not known.",
                        Query(_of("mfu_ratio"), "MFU"),
                        unit="percentunit",
                        none="Not known: no step, or devices without a known peak",
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
                            happened(f"trainmaster_job_restarts_total{{{IN}}}", "rung", f"{OF_JOB}, rung"), "{{rung}}"
                        ),
                        unit="short",
                        decimals=0,
                        events=True,
                        stacked=True,
                        colors=RUNG_COLORS,
                        none=NO_JOB,
                    ),
                    curves(
                        15,
                        "Where the time goes",
                        "The job's time since its first step, as shares: useful, and lost by what it was lost to. "
                        "Good: nearly all useful. The time of a recovery is counted when it ends. A gap: no step was "
                        "made.",
                        [
                            Query(f"{_rate('useful_seconds_total')} / {time} {runs}", "useful"),
                            Query(
                                f"({_rate('lost_seconds_total', 'category')} > 0) / on () group_left () {time} {runs}",
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
                        "are as high as the interval of saving. A line that only rises: saves fail. It counts from the "
                        "moment at which the operator learns of a save.",
                        Query(_of("checkpoint_age_seconds", by="tier"), "{{tier}}"),
                        unit="s",
                        colors=TIER_COLORS,
                        none="No checkpoint",
                    ),
                    curves(
                        17,
                        "Duration of a save",
                        "How long the newest save took, by where it went. Good: far below the interval of saving. If "
                        "storage grows and memory does not, the file system is slow.",
                        Query(_of("checkpoint_duration_seconds", by="tier"), "{{tier}}"),
                        unit="s",
                        colors=TIER_COLORS,
                        up_to=1,
                        none="No save has ended",
                    ),
                    curves(
                        18,
                        "Straggler",
                        "How many times as long as the median rank the slowest one computes. Good: no data, or below "
                        "1.2. Above 1.5 all ranks wait for it: the runbook job-straggler says which rank and node.",
                        Query(_of("straggler_slowdown"), "slowdown"),
                        unit="none",
                        colors={"slowdown": ORANGE},
                        decimals=2,
                        steps=((None, GREEN), (1.5, RED)),
                        none="No straggler is known",
                    ),
                    curves(
                        19,
                        "Workers",
                        "Pods that the job asks for, has, has ready, and spares. Good: ready equals desired.",
                        Query(_of("workers", by="state"), "{{state}}"),
                        unit="short",
                        colors=WORKER_COLORS,
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
                        "that rises for hours is a leak, and ends with OutOfMemory. In a local run the container is "
                        "the machine, the same for all jobs.",
                        Query(_of("memory_bytes", by="what"), "{{what}}"),
                        unit="bytes",
                        colors=WHAT_COLORS,
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
                        colors=WHAT_COLORS,
                        none="No pod reports a limit",
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
                f"{happened(f'trainmaster_job_failures_total{{{IN}}}', 'cause', f'{OF_JOB}, cause')} > 0",
                "Failure",
                "{{cause}}",
                RED,
            ),
            annotation(
                "Restarts",
                f"{happened(f'trainmaster_job_restarts_total{{{IN}}}', 'rung', f'{OF_JOB}, rung')} > 0",
                "Restart",
                "{{rung}}",
                ORANGE,
            ),
            annotation(
                "Resizes",
                f"max({desired}) != max({before(desired)})",
                "Resize",
                "another number of workers is asked for",
                "blue",
            ),
            took_over(),
        ],
    )
