"""The samples of one job: pure functions from its record and from reports of its agents to numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmaster.contract.wire import Report
from trainmaster_operator.control.job_usage_and_mfu import JobUsage
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Rung
from trainmaster_operator.planning.facts.timestamps import seconds_of, since
from trainmaster_operator.planning.lifecycle import job_totals, metric_categories
from trainmaster_operator.planning.lifecycle.goodput import useful_share
from trainmaster_operator.planning.placement.gang_release import SCHEDULED
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.observability.job_metric_table import MOST_CONDITIONS

Sample = tuple[str, tuple[str, ...], float]
"""(name of the family, values of its labels after namespace and job, value)."""

UNREADABLE = "Unreadable"  # Instead of a phase, if the manifest is invalid.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
RUNNING = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.RECOVERING, JobPhase.RESIZING, JobPhase.SUSPENDING)
STORAGE, MEMORY = "storage", "memory"

STANDS_AFTER_S = 60.0
STANDS_AFTER_STEPS = 10
"""A job that has completed no step for so many seconds, and for so many steps' usual time, has no rate any more."""

_FIRST = ("Failed", "Held", "ReconcileError", "CheckpointFailed", "CheckpointStalled")  # Alerts and signs name these.
_USUAL = ("Scheduled", "Running", "Complete", "Suspended", "SizeAsWished")  # Conditions that report no problem.
_LABEL_CHARACTERS = 64


# -- what is read of the status


def runs(status: JobState) -> bool:
    """Return whether ranks of the job run or are about to."""
    return status.phase in RUNNING


def ended_at(status: JobState) -> float | None:
    """Return the time at which the job ended, in seconds since 1970; None if it has not."""
    return seconds_of(status.completionTime) if status.phase.finished and status.completionTime else None


def restarts(status: JobState) -> dict[str, int]:
    """Return the number of restarts by rung."""
    return {rung.value: getattr(status.restarts, rung.value) for rung in Rung}


def steps(status: JobState, now: float) -> bool:
    """Return whether the job completes steps, so that what its last step showed still holds. `now`: seconds since
    1970."""
    progress = status.progress
    if status.phase not in (JobPhase.RUNNING, JobPhase.RESIZING, JobPhase.SUSPENDING):
        return False
    usual_s = 1 / progress.stepsPerSecond if progress.stepsPerSecond > 0 else 0.0
    return since(progress.updatedAt, now) <= max(STANDS_AFTER_S, STANDS_AFTER_STEPS * usual_s)


def conditions(status: JobState) -> list[tuple[str, str]]:
    """Return type and reason of the conditions that are true, those that report a problem first. Among these, the
    ones of which alerts and dashboards speak come first, because only MOST_CONDITIONS are returned."""
    held = [(c.type, c.reason) for c in status.conditions if c.status == "True"]
    return sorted(held, key=lambda one: (one[0] in _USUAL, one[0] not in _FIRST))[:MOST_CONDITIONS]


def waits_for(status: JobState) -> str:
    """Return in one word why a pending job's pods do not run."""
    reasons = (c.reason for c in status.conditions if c.type == SCHEDULED and c.status == "False" and c.reason)
    return next(reasons, "Starting")


def queue(record: JobRecord) -> str:
    """Return the name of the queue in which the job waits; "" if there is none."""
    assert record.job is not None
    named = getattr(record.job.spec.scheduling, "queue", None)
    return str(named or record.job.metadata.labels.get(QUEUE_LABEL, ""))


def number(text: str) -> float | None:
    """Return a text as a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


# -- samples


def of_state(record: JobRecord) -> Iterator[Sample]:
    """Yield the samples that depend on the record alone, not on the time."""
    if record.job is None:
        yield "phase", (UNREADABLE,), 1
        return
    status = record.status
    yield "phase", (status.phase.value,), 1
    for kind, reason in conditions(status):
        yield "condition", (kind, reason[:_LABEL_CHARACTERS]), 1
    yield "info", (record.job.spec.framework.value, queue(record)[:_LABEL_CHARACTERS]), 1
    for rung, often in restarts(status).items():
        yield "restarts_total", (rung,), often
    known = status.totals
    failures = known.failures if known is not None else {}
    for word, count in metric_categories.grouped(
        failures, metric_categories.FAILURES, metric_categories.FAILURE_WORDS
    ).items():
        yield "failures_total", (word,), count
    phases = known.phases if known is not None else {}
    for word, seconds in metric_categories.grouped(
        phases, metric_categories.PHASES, metric_categories.PHASE_WORDS
    ).items():
        yield "recovery_seconds_total", (word,), seconds
    yield "recoveries_total", (), known.recoveries if known is not None else 0
    yield "lost_steps_total", (), known.lostSteps if known is not None else 0
    yield "useful_seconds_total", (), status.usefulSeconds
    for category, lost_s in job_totals.losses(status).items():
        yield "lost_seconds_total", (category,), lost_s
    ratio = useful_share(status.usefulSeconds, status.lost)
    if ratio is not None:
        yield "goodput_ratio", (), ratio


def of_wait(record: JobRecord, now: float) -> Iterator[Sample]:
    """Yield how long a pending job has waited. `now`: seconds since 1970."""
    if record.job is None or record.status.phase is not JobPhase.PENDING:
        return
    status = record.status
    began = status.roundOpenedAt or status.startTime or record.job.metadata.creationTimestamp or ""
    yield "pending_seconds", (waits_for(status)[:_LABEL_CHARACTERS],), since(began, now)


def of_running(record: JobRecord, usage: JobUsage, reports: Sequence[Report], now: float) -> Iterator[Sample]:
    """Yield the samples of a running job. `reports`: reports of the agents whose ranks run in its round."""
    assert record.job is not None
    status, progress = record.status, record.status.progress
    yield "step", (), progress.step
    if progress.totalSteps:
        yield "total_steps", (), progress.totalSteps
    if steps(status, now):
        if (loss := number(progress.loss)) is not None:
            yield "loss", (), loss
        if progress.tokensPerSecond:
            yield "tokens_per_second", (), progress.tokensPerSecond
        if usage.mfu is not None:
            yield "mfu_ratio", (), usage.mfu
    yield from _of_checkpoints(record, usage, now)
    workers = status.workers
    sizes = {"desired": record.job.spec.workers.replicas, "current": workers.replicas}
    for state, size in {**sizes, "ready": workers.ready, "spare": workers.spares}.items():
        yield "workers", (state,), size
    slow = status.straggler
    if slow is not None and slow.told and slow.usualSeconds > 0:
        yield "straggler_slowdown", (), slow.computeSeconds / slow.usualSeconds
    yield from _of_usage(usage)
    yield from _of_memory(reports)


def _of_checkpoints(record: JobRecord, usage: JobUsage, now: float) -> Iterator[Sample]:
    assert record.job is not None
    status, spec = record.status, record.job.spec
    saved, progress = status.checkpoint, status.progress
    if saved is not None:
        yield "checkpoint_step", (STORAGE,), saved.step
    saved_at = saved.time if saved is not None else status.firstStepAt if spec.checkpoint.folder else ""
    if saved_at:
        # While a job is suspended it does nothing that could be lost.
        yield "checkpoint_age_seconds", (STORAGE,), since(max(saved_at, status.startTime), now)
    pause = status.pauses.get("save")
    stands_still_s = pause.typical if pause is not None and pause.count else None
    if spec.ram is None:
        if stands_still_s is not None:
            yield "checkpoint_duration_seconds", (STORAGE,), stands_still_s
        return
    if usage.save_s is not None:
        yield "checkpoint_duration_seconds", (STORAGE,), usage.save_s
    if stands_still_s is not None:
        yield "checkpoint_duration_seconds", (MEMORY,), stands_still_s
    # What was in memory before a suspend is gone with its pods.
    if progress.memoryStep and progress.updatedAt >= status.startTime:
        yield "checkpoint_step", (MEMORY,), progress.memoryStep
        if progress.stepsPerSecond > 0:
            steps_s = max(0, progress.step - progress.memoryStep) / progress.stepsPerSecond
            yield "checkpoint_age_seconds", (MEMORY,), steps_s + since(progress.updatedAt, now)


def _of_usage(usage: JobUsage) -> Iterator[Sample]:
    used = usage.usage
    for name, value in (
        ("cpu_seconds_total", used.cpu_s),
        ("network_receive_bytes_total", used.received_bytes),
        ("network_transmit_bytes_total", used.sent_bytes),
        ("accelerator_utilization_ratio", used.accelerator_ratio),
        ("accelerator_memory_bytes", used.accelerator_bytes),
    ):
        if value is not None:
            yield name, (), value


def _of_memory(reports: Sequence[Report]) -> Iterator[Sample]:
    """Yield the maximum over a job's ranks and containers; there is no series per rank."""
    ranks = [rank for report in reports for rank in report.ranks]
    for what, sizes in (
        ("process", [rank.rss_bytes for rank in ranks]),
        ("device", [rank.device_bytes for rank in ranks]),
        ("container", [report.container_bytes for report in reports]),
    ):
        if any(sizes):
            yield "memory_bytes", (what,), max(sizes)
    for what, sizes in (
        ("process", [rank.rss_peak_bytes for rank in ranks]),
        ("device", [rank.device_peak_bytes for rank in ranks]),
    ):
        if any(sizes):
            yield "memory_peak_bytes", (what,), max(sizes)
    for what, pairs in (
        ("device", [(rank.device_peak_bytes, rank.device_limit_bytes) for rank in ranks]),
        ("container", [(report.container_bytes, report.container_limit_bytes) for report in reports]),
    ):
        shares = [size / limit for size, limit in pairs if limit > 0]
        if shares:
            yield "memory_used_ratio", (what,), max(shares)
