"""Prometheus metrics of the operator. Labels are bounded: nothing per job, per pod or per rank."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FAST_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One operator's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.passes = Counter(
            "trainmaster_reconcile_total", "Passes over a job.", ["result"], registry=self.registry
        )  # ok, conflict, unavailable, error
        self.pass_seconds = Histogram(
            "trainmaster_reconcile_seconds", "Duration of a pass.", buckets=_FAST_S, registry=self.registry
        )
        self.queue_wait_seconds = Histogram(
            "trainmaster_queue_wait_seconds",
            "How long a job waits for its pass.",
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.decide_seconds = Histogram(
            "trainmaster_recovery_decide_seconds",
            "From the arrival of a failure's verdict to the publication of the next round.",
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.writes = Counter(
            "trainmaster_api_writes_total", "Writes to the API server.", ["what"], registry=self.registry
        )  # intent, progress, create, delete, event
        self._gauges: dict[str, Gauge] = {}

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when metrics are."""
        gauge = Gauge(f"trainmaster_{name}", text, registry=self.registry)
        gauge.set_function(value)
        self._gauges[name] = gauge

    def render(self) -> bytes:
        return generate_latest(self.registry)
