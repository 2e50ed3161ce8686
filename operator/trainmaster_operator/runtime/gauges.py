"""Metrics that are read from the operator when somebody asks for them. Those of jobs are the leader's alone, so that a
sum over replicas counts each job once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeGuard

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.planning.state import JobPhase, JobState, Straggler
from trainmaster_operator.runtime.records import JobRecord

if TYPE_CHECKING:
    from trainmaster_operator.runtime.operator import Operator

LAG_LOOK_S = 1.0
UNREADABLE = "Unreadable"  # instead of a phase: nobody can understand the manifest
_RUNNING = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.RECOVERING, JobPhase.RESIZING, JobPhase.SUSPENDING)

_JOB_GAUGES: tuple[tuple[str, str, Callable[[JobState], float | None]], ...] = (
    ("step", "The last step that a running job has completed.", lambda s: s.progress.step),
    ("total_steps", "The steps that a running job is to complete.", lambda s: s.progress.totalSteps or None),
    (
        "checkpoint_step",
        "The newest step of a running job that is saved to storage.",
        lambda s: s.checkpoint.step if s.checkpoint is not None else None,
    ),
    ("loss", "The last loss of a running job.", lambda s: _number(s.progress.loss)),
    ("tokens_per_second", "Throughput of a running job, smoothed.", lambda s: s.progress.tokensPerSecond or None),
    (
        "goodput",
        "Share of a running job's time since its first step that went into steps which count.",
        lambda s: _number(s.goodput),
    ),
    (
        "straggler_slowdown",
        "How many times as long as the median rank's the straggler's part of a step takes, in a running job with one.",
        lambda s: s.straggler.computeSeconds / s.straggler.usualSeconds if _told(s.straggler) else None,
    ),
)


class LoopLag:
    """How much later than asked for the event loop came back, when that was last tried."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time() + LAG_LOOK_S
            await asyncio.sleep(LAG_LOOK_S)
            self.seconds = max(0.0, loop.time() - asked)


def observe(operator: Operator) -> None:
    """Adds them to the operator's registry."""
    watch = operator.metrics.watch
    watch("queue_depth", "Jobs that wait for a pass.", lambda: len(operator.queue))
    watch("leader", "1 if this operator leads.", lambda: float(operator.leader.leading))
    watch(
        "leader_epoch",
        "The epoch in which this operator leads: the number of changes of the leader. 0: it doesn't lead.",
        lambda: operator.leader.epoch if operator.leader.leading else 0,
    )
    watch(
        "event_loop_lag_seconds",
        "How much later than asked for the event loop came back, when that was last tried.",
        lambda: operator.lag.seconds,
    )
    operator.metrics.registry.register(_Jobs(operator))
    operator.metrics.registry.register(_Watches(operator))


class _Watches(Collector):
    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ages = GaugeMetricFamily(
            "trainmaster_watch_age_seconds",
            "Since the API server last told anything about objects of a kind.",
            labels=["kind"],
        )
        for informer in (self._operator.jobs, self._operator.pods):
            ages.add_metric([informer.kind], informer.age_s)
        yield ages


class _Jobs(Collector):
    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def collect(self) -> Iterator[GaugeMetricFamily]:
        operator = self._operator
        leads = operator.leader.leading
        records = [record for record in operator.jobs.values() if not record.is_managed_elsewhere] if leads else []
        yield _by_phase(records, leads)
        pods = GaugeMetricFamily("trainmaster_pods", "Pods of jobs. Only the leader tells.")
        agents = GaugeMetricFamily(
            "trainmaster_agents_connected", "Agents that hold a connection, or did just now. Only the leader tells."
        )
        if leads:
            pods.add_metric([], len(operator.pods))
            agents.add_metric([], operator.fleet.connected())
        yield pods
        yield agents
        if operator.settings.job_metrics:
            running = [record for record in records if record.job and record.status.phase in _RUNNING]
            yield from _of_running(running)
            yield from _of_memory(running, operator.fleet)


def _by_phase(records: list[JobRecord], leads: bool) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "trainmaster_jobs",
        f"Jobs by phase; {UNREADABLE}: their manifest can't be understood. Only the leader tells.",
        labels=["phase"],
    )
    if leads:
        counts = Counter(record.status.phase.value if record.job else UNREADABLE for record in records)
        for phase in (*(phase.value for phase in JobPhase), UNREADABLE):
            family.add_metric([phase], counts[phase])
    return family


def _of_running(running: list[JobRecord]) -> Iterator[GaugeMetricFamily]:
    for name, text, value in _JOB_GAUGES:
        family = GaugeMetricFamily(f"trainmaster_job_{name}", text, labels=["namespace", "job"])
        for record in running:
            number = value(record.status)
            if number is not None:
                family.add_metric([record.key.namespace, record.key.name], number)
        yield family


def _of_memory(running: list[JobRecord], fleet: Fleet) -> Iterator[GaugeMetricFamily]:
    """Of each job the one that has most, or is fullest: nothing per rank."""
    labels = ["namespace", "job", "what"]
    now = GaugeMetricFamily(
        "trainmaster_job_memory_bytes",
        "Memory that a running job takes, by what: process of the rank with most, device with most in tensors, "
        "container with most.",
        labels=labels,
    )
    peak = GaugeMetricFamily(
        "trainmaster_job_memory_peak_bytes",
        "The most memory that any of a running job's ranks has taken since it began, by what: process, device.",
        labels=labels,
    )
    used = GaugeMetricFamily(
        "trainmaster_job_memory_used_ratio",
        "Share of its memory that the fullest takes in a running job, by what: a device at its peak, a container that "
        "has a limit.",
        labels=labels,
    )
    for record in running:
        job = [record.key.namespace, record.key.name]
        reports = fleet.reports(record.key)
        ranks = [rank for report in reports for rank in report.ranks]
        for what, sizes in (
            ("process", [rank.rss_bytes for rank in ranks]),
            ("device", [rank.device_bytes for rank in ranks]),
            ("container", [report.container_bytes for report in reports]),
        ):
            if any(sizes):
                now.add_metric([*job, what], max(sizes))
        for what, sizes in (
            ("process", [rank.rss_peak_bytes for rank in ranks]),
            ("device", [rank.device_peak_bytes for rank in ranks]),
        ):
            if any(sizes):
                peak.add_metric([*job, what], max(sizes))
        for what, pairs in (
            ("device", [(rank.device_peak_bytes, rank.device_limit_bytes) for rank in ranks]),
            ("container", [(report.container_bytes, report.container_limit_bytes) for report in reports]),
        ):
            shares = [size / limit for size, limit in pairs if limit > 0]
            if shares:
                used.add_metric([*job, what], max(shares))
    yield from (now, peak, used)


def _told(straggler: Straggler | None) -> TypeGuard[Straggler]:
    return straggler is not None and straggler.told and straggler.usualSeconds > 0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
