"""Metrics of the whole operator that are computed when they are read. Only the leader reports those about jobs, so
that a sum over replicas counts each job once. Those of single jobs are in job_metrics_page.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sized
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.runtime.cache.cache_records import JobRecord, PodEntry
from trainmaster_operator.runtime.cache.informer import Informer
from trainmaster_operator.runtime.lasting_api_failures import REASONS, ApiFailures
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.observability.job_metric_values import UNREADABLE
from trainmaster_operator.runtime.observability.operator_metrics import Metrics

LAG_LOOK_S = 1.0


class LoopLag:
    """How much later than requested the event loop resumed a task at the last check, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time() + LAG_LOOK_S
            await asyncio.sleep(LAG_LOOK_S)
            self.seconds = max(0.0, loop.time() - asked)


class Observed(Protocol):
    """The parts of the operator from which the metrics are read."""

    metrics: Metrics
    leader: Leadership
    jobs: Informer[JobRecord]
    pods: Informer[PodEntry]
    fleet: Fleet
    lag: LoopLag
    failures: ApiFailures

    @property
    def queue(self) -> Sized: ...


def observe(operator: Observed) -> None:
    """Add these metrics to the operator's registry."""
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
        "Delay of the event loop at the last measurement.",
        lambda: operator.lag.seconds,
    )
    operator.metrics.registry.register(_Jobs(operator))
    operator.metrics.registry.register(_Failing(operator))
    operator.metrics.registry.register(_Watches(operator))


class _Watches(Collector):
    def __init__(self, operator: Observed) -> None:
        self._operator = operator

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ages = GaugeMetricFamily(
            "trainmaster_watch_age_seconds",
            "Number of seconds since the operator last received an object of a kind from the API server.",
            labels=["kind"],
        )
        for informer in (self._operator.jobs, self._operator.pods):
            ages.add_metric([informer.kind], informer.age_s)
        yield ages


class _Jobs(Collector):
    def __init__(self, operator: Observed) -> None:
        self._operator = operator

    def collect(self) -> Iterator[GaugeMetricFamily]:
        operator = self._operator
        leads = operator.leader.leading
        records = [record for record in operator.jobs.values() if not record.is_managed_elsewhere] if leads else []
        yield _by_phase(records, leads)
        pods = GaugeMetricFamily("trainmaster_pods", "Number of pods of jobs. Only the leader exports this metric.")
        agents = GaugeMetricFamily(
            "trainmaster_agents_connected",
            "Number of agents that are connected, or were connected a moment ago. Only the leader exports this metric.",
        )
        if leads:
            pods.add_metric([], len(operator.pods))
            agents.add_metric([], operator.fleet.connected())
        yield pods
        yield agents


class _Failing(Collector):
    def __init__(self, operator: Observed) -> None:
        self._operator = operator

    def collect(self) -> Iterator[GaugeMetricFamily]:
        failing = GaugeMetricFamily(
            "trainmaster_jobs_failing_api_calls",
            "Jobs whose last pass the API server refused or did not answer, by reason. Pods that can't be created are "
            "reported by the job's condition Scheduled instead. Only the leader exports this metric.",
            labels=["reason"],
        )
        if self._operator.leader.leading:
            counts = self._operator.failures.reasons()
            for reason in REASONS:
                failing.add_metric([reason], counts[reason])
        yield failing


def _by_phase(records: list[JobRecord], leads: bool) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "trainmaster_jobs",
        f"Jobs by phase; {UNREADABLE}: the operator can't parse their manifest. Only the leader exports this metric.",
        labels=["phase"],
    )
    if leads:
        counts = Counter(record.status.phase.value if record.job else UNREADABLE for record in records)
        for phase in (*(phase.value for phase in JobPhase), UNREADABLE):
            family.add_metric([phase], counts[phase])
    return family
