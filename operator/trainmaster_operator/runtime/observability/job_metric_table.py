"""The metrics of single jobs: names, labels, units, sources, and what to do with them.

docs/metrics.md is generated from this table. All of them have the labels `namespace` and `job`, which name the training
job.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.planning.lifecycle.metric_categories import FAILURE_WORDS, LOSS_WORDS, PHASE_WORDS

MOST_CONDITIONS = 4
MOST_SERIES = 41
"""Maximum number of series of a job that does not run."""
MOST_RUNNING_SERIES = 28
"""Maximum number of further series of a running job."""

STATUS = "status of the job"
AGENTS = "agents of the job"


@dataclass(frozen=True)
class Family:
    """A metric of single jobs."""

    name: str  # Without the prefix trainmaster_job_.
    kind: str  # gauge or counter.
    labels: tuple[str, ...]  # Further labels after namespace and job.
    unit: str
    source: str
    text: str
    advice: str

    @property
    def full_name(self) -> str:
        return f"trainmaster_job_{self.name}"


STATE: tuple[Family, ...] = (
    Family(
        "phase", "gauge", ("phase",), "1", STATUS,
        "1 for the phase of the job; other phases have no series. Unreadable: the operator can't parse the manifest.",
        "Count jobs by phase; alert on Failed and Held.",
    ),
    Family(
        "condition", "gauge", ("condition", "reason"), "1", STATUS,
        f"1 for each condition that is True, at most {MOST_CONDITIONS}; those that report a problem come first.",
        "The reason names the cause; `kubectl describe` shows the message.",
    ),
    Family(
        "info", "gauge", ("framework", "queue"), "1", "manifest of the job",
        "Always 1: which framework the job has, and which queue it waits in (empty: none).",
        "Join it to other metrics by namespace and job.",
    ),
    Family(
        "pending_seconds", "gauge", ("reason",), "seconds", STATUS,
        "How long a job in the phase Pending has waited for its pods, and why.",
        "If it grows for minutes, look at the reason: a quota, no free node, an image that can't be pulled.",
    ),
    Family(
        "restarts_total", "counter", ("rung",), "restarts", STATUS,
        "Restarts by rung of the recovery ladder: inPlace, pod, full, shrink; free: what does not count as a failure.",
        "Many restarts of one job: see job_failures_total for the cause, and status.lastFailure for rank and node.",
    ),
    Family(
        "failures_total", "counter", ("cause",), "failures", STATUS,
        f"Failures by cause, in {len(FAILURE_WORDS)} words: {', '.join(FAILURE_WORDS)}. NodeLost has AgentLost too, "
        "Preempted has Evicted, ConfigError has ImageError, Unschedulable and Refused.",
        "Alert on increase(); the first failure counts, since each series begins at 0.",
    ),
    Family(
        "recovery_seconds_total", "counter", ("phase",), "seconds", STATUS + ", measured by agents",
        f"Where the time of recoveries went: {', '.join(PHASE_WORDS)}. detect has decide too, schedule has drain, "
        "start has fork and imports, load has build. No second is counted twice: where pods wait for each other, the "
        "time is that of the pod that the others waited for.",
        "The phase with most seconds is the one to make faster: docs/failures.md.",
    ),
    Family(
        "recoveries_total", "counter", (), "recoveries", STATUS,
        "Failures after which the job has completed a step again.",
        "Divide job_recovery_seconds_total by it for the time of one recovery.",
    ),
    Family(
        "lost_steps_total", "counter", (), "steps", STATUS,
        "Steps that had to be done again after failures.",
        "If it grows, save more often (checkpoint.every) or keep checkpoints in memory (checkpoint.ram).",
    ),
    Family(
        "useful_seconds_total", "counter", (), "seconds", STATUS,
        "Time since the first step that went into steps which had not been completed before. It continues after a "
        "resume.",
        "With job_lost_seconds_total it gives the goodput of any window.",
    ),
    Family(
        "lost_seconds_total", "counter", ("category",), "seconds", STATUS,
        f"Time since the first step that was lost: {', '.join(LOSS_WORDS)}. detection, queue and the loading part of "
        "checkpoint are separated for failures of the program; other: evaluations, starts after a resume, the rest.",
        "The largest category is the one to work on: docs/goodput.md.",
    ),
    Family(
        "goodput_ratio", "gauge", (), "0 to 1", STATUS,
        "Share of the time since the first step that went into steps which count.",
        "Below 0.9 look at job_lost_seconds_total.",
    ),
)  # fmt: skip

LIVE: tuple[Family, ...] = (
    Family(
        "step", "gauge", (), "steps", AGENTS,
        "The last step that a running job has completed.",
        "If it does not change for much longer than a step takes, see docs/hangs.md.",
    ),
    Family(
        "total_steps", "gauge", (), "steps", "manifest of the job",
        "The steps that a running job is to complete. Absent if the script does not report them.",
        "job_step divided by it is the progress.",
    ),
    Family(
        "loss", "gauge", (), "the unit of the loss", AGENTS,
        "The last loss of a job that makes steps. Absent while it recovers or makes no step.",
        "NaN, or a sudden rise: look at the data and the learning rate of that step.",
    ),
    Family(
        "tokens_per_second", "gauge", (), "tokens/s", AGENTS,
        "Throughput of a job that makes steps, smoothed. Absent while it recovers or makes no step: after a minute, or "
        "ten times the usual time of a step if that is longer.",
        "A fall without a restart: see job_straggler_slowdown and job_accelerator_utilization_ratio.",
    ),
    Family(
        "mfu_ratio", "gauge", (), "0 to 1", AGENTS + ", reported by the trainer",
        "Model FLOPs utilization of the last step: the operations of the model, divided by the operations that its "
        "devices can do in that time. Absent while the job recovers or makes no step.",
        "0.3 to 0.6 is usual on large GPUs; docs/efficiency.md says how to raise it.",
    ),
    Family(
        "checkpoint_step", "gauge", ("tier",), "steps", STATUS,
        "The newest step of a running job that is saved, by tier: storage, or the memory of its pods.",
        "job_step minus this is what a failure would cost.",
    ),
    Family(
        "checkpoint_age_seconds", "gauge", ("tier",), "seconds", STATUS,
        "Age of that checkpoint, since the operator learnt of it. storage: before the first one, the time since the "
        "first step; after a resume, at most the time since the resume. memory: estimated from the number of steps "
        "since then and the duration of a step.",
        "If it is much more than checkpoint.every steps take, look for the conditions CheckpointFailed and "
        "CheckpointStalled.",
    ),
    Family(
        "checkpoint_duration_seconds", "gauge", ("tier",), "seconds", AGENTS,
        "How long a save takes. memory: the time for which training stops. storage: from the copy in memory to the "
        "manifest; without checkpoints in memory, the time for which training stops.",
        "If storage takes longer than the time between two saves, storage is too slow.",
    ),
    Family(
        "workers", "gauge", ("state",), "pods", "manifest and status of the job",
        "Pods of a running job: desired by its manifest, current in its round, ready with an agent, spare.",
        "ready below current: pods are missing; current below desired: the job has shrunk.",
    ),
    Family(
        "straggler_slowdown", "gauge", (), "ratio", STATUS,
        "Compute time of the straggler in a step, divided by that of the median rank. Absent without a straggler.",
        "status.internal.straggler has the rank, its pod and its node: look at that node.",
    ),
    Family(
        "cpu_seconds_total", "counter", (), "seconds", AGENTS + ": control group",
        "CPU time of the containers that run ranks, over all pods that a running job has had since the present leader "
        "began to lead.",
        "rate() is the number of busy cores; compare it with the requests of the template.",
    ),
    Family(
        "memory_bytes", "gauge", ("what",), "bytes", AGENTS,
        "Memory of a running job: the maximum over its ranks (process, tensors on a device) and over its containers. "
        "There is no series per rank.",
        "See job_memory_used_ratio.",
    ),
    Family(
        "memory_peak_bytes", "gauge", ("what",), "bytes", AGENTS,
        "The highest memory of any rank of a running job since the rank began: process, device.",
        "Request this much in the template, with a margin.",
    ),
    Family(
        "memory_used_ratio", "gauge", ("what",), "0 to 1", AGENTS,
        "Highest share of memory in use, over the devices (at their peak) or over the containers that have a limit.",
        "Above 0.95 raise the limit, or make the micro-batch smaller: docs/memory.md.",
    ),
    Family(
        "network_receive_bytes_total", "counter", (), "bytes", AGENTS + ": /proc/net/dev",
        "Bytes that the pods of a running job have received since the present leader began to lead, without the "
        "loopback. With hostNetwork: the bytes of the node. Absent in a local run.",
        "Compare rate() with the bandwidth of the network; RDMA is not counted here.",
    ),
    Family(
        "network_transmit_bytes_total", "counter", (), "bytes", AGENTS + ": /proc/net/dev",
        "Bytes that the pods of a running job have sent since the present leader began to lead, without the "
        "loopback. With hostNetwork: the bytes of the node. Absent in a local run.",
        "Compare rate() with the bandwidth of the network; RDMA is not counted here.",
    ),
    Family(
        "accelerator_utilization_ratio", "gauge", (), "0 to 1", AGENTS + ": NVML",
        "How busy the accelerators of a running job are, on average. Absent without the package pynvml or a GPU.",
        "Low with a high step time: ranks wait for data, storage or each other.",
    ),
    Family(
        "accelerator_memory_bytes", "gauge", (), "bytes", AGENTS + ": NVML",
        "Memory of all accelerators of a running job that any process uses.",
        "Compare it with job_memory_bytes{what=\"device\"}: the rest is the allocator's cache and other processes.",
    ),
)  # fmt: skip

FAMILIES = STATE + LIVE
