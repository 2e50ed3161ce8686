"""Prometheus metrics of the operator. Labels are bounded: there is no series per pod, rank or job (job_metrics_page.py
has those of single jobs). Series with known label values exist from the start with value 0, because increase()
ignores the first value of a series. docs/metrics.md is generated from these."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

from trainmaster.contract.wire import Cause
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.cluster.port import KINDS
from trainmaster_operator.control.http_server import RESULTS
from trainmaster_operator.planning.facts.job_state import JobState, Recovery, Rung
from trainmaster_operator.planning.lifecycle.goodput import CHECKPOINT, EVALUATION, RESUME
from trainmaster_operator.runtime.cache.informer import JobKey

_FAST_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_RECOVERY_S = (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)

OTHER = "other"  # For names that are unknown here; they come from agents or from the status of a newer operator.
_CAUSES = frozenset(cause.value for cause in Cause)
_SILENCE = (Cause.AGENT_LOST.value, Cause.NODE_LOST.value)
_LOSSES = _CAUSES | {CHECKPOINT, EVALUATION, RESUME}
_PHASES = frozenset(
    ("detect", "decide", "drain", "schedule", "start", "fork", "imports", "rendezvous", "build", "load", "first_step")
)
SETTLED_S = 10.0  # Seconds after the first step of a round within which its slowest agents have reported their clocks.


class Metrics:
    """The metrics of one operator, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_First(self._begin_at_zero))
        self.passes = Counter(
            "trainmaster_reconcile_total",
            "Passes over a job, by result: ok, conflict, unavailable, error.",
            ["result"],
            registry=self.registry,
        )
        self.pass_seconds = self._histogram("reconcile_seconds", "Duration of a pass.")
        self.queue_wait_seconds = self._histogram("queue_wait_seconds", "How long a job waits for its pass.")
        self.decide_seconds = self._histogram(
            "recovery_decide_seconds",
            "From the arrival of a failure's verdict to the publication of the next round.",
        )
        self.writes = Counter(
            "trainmaster_api_writes_total",
            "Writes to the API server by what they are: intent, progress, create, delete, resize.",
            ["what"],
            registry=self.registry,
        )
        self.api_calls = Counter(
            "trainmaster_api_calls_total",
            "Calls of the API server by verb, kind and HTTP status; code 0: no answer.",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self.api_seconds = Histogram(
            "trainmaster_api_call_seconds",
            "Duration of calls of the API server; of a watch, until it is open.",
            ["verb", "kind"],
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.checkpoint_failures = Counter(
            "trainmaster_checkpoint_failures_total",
            "Saves that could not be written to storage; those of each rank are counted separately.",
            registry=self.registry,
        )
        self.restarts = Counter(
            "trainmaster_restarts_total",
            "Recoveries that were begun, by cause and scope: inPlace, pod, full, free.",
            ["cause", "scope"],
            registry=self.registry,
        )
        self.recovery_seconds = Histogram(
            "trainmaster_recovery_seconds",
            "Seconds of recoveries by phase; where pods wait for each other, the pod that the others waited for "
            "counts, so the phases are never more than the total. total: from the failure to the first step of the "
            "new round.",
            ["phase"],
            buckets=_RECOVERY_S,
            registry=self.registry,
        )
        self.lost_steps = Counter(
            "trainmaster_lost_steps_total", "Steps that had to be done again after failures.", registry=self.registry
        )
        self.useful_seconds = Counter(
            "trainmaster_useful_seconds_total",
            "Time of jobs since their first step that went into steps which had not been completed before.",
            registry=self.registry,
        )
        self.lost_seconds = Counter(
            "trainmaster_lost_seconds_total",
            "Time of jobs since their first step that was lost: down time and repeated steps by the cause of the "
            "failure, and Checkpoint and Evaluation for the times in which training stopped for them.",
            ["cause"],
            registry=self.registry,
        )
        self.hangs = Counter(
            "trainmaster_hang_suspicions_total",
            "Suspicions that ranks are stuck, by result: raised, dropped when the ranks continued, confirmed if the "
            "mode forbids a restart. Restarts are counted in trainmaster_restarts_total.",
            ["result"],
            registry=self.registry,
        )
        self.stragglers = Counter(
            "trainmaster_stragglers_total", "Number of stragglers that were found.", registry=self.registry
        )
        self.events = Counter(
            "trainmaster_events_total",
            "Kubernetes Events by result: told (written), counted (a repetition of an earlier event), dropped (too "
            "many for one job), failed.",
            ["result"],
            registry=self.registry,
        )
        self.crd_missing = Gauge(
            "trainmaster_crd_fields_missing",
            "Fields of jobs that this operator knows and the cluster's CustomResourceDefinition lacks: above 0 the "
            "definition is older. It is compared every five minutes.",
            registry=self.registry,
        )
        self.crd_unknown = Gauge(
            "trainmaster_crd_fields_unknown",
            "Fields of jobs that the cluster's CustomResourceDefinition has and this operator doesn't know: above 0 "
            "the definition is newer. It is compared every five minutes.",
            registry=self.registry,
        )
        self.agents_lost = Counter(
            "trainmaster_agents_lost_total",
            "Number of agents that the operator considered lost because they no longer reported.",
            registry=self.registry,
        )
        self.channel_requests = Counter(
            "trainmaster_channel_requests_total",
            f"Requests of agents by how they were answered: {', '.join(RESULTS)}.",
            ["result"],
            registry=self.registry,
        )
        self.certificates = Gauge(
            "trainmaster_certificate_expiry_timestamp_seconds",
            "When a certificate of this operator expires, in seconds since 1970, by certificate: server, authority.",
            ["certificate"],
            registry=self.registry,
        )
        self._has_begun = False
        self._unsettled: dict[tuple[JobKey, int], tuple[float, Recovery]] = {}

    def _begin_at_zero(self) -> None:
        """Make the series whose labels are known. They are made when somebody first reads the registry: that takes as
        long as all else of an operator's start, and most operators of simulations and tests end without being read."""
        if self._has_begun:
            return
        self._has_begun = True
        for counter, results in (
            (self.passes, ("ok", "conflict", "unavailable", "error")),
            (self.writes, ("intent", "progress", "create", "delete", "resize")),
            (self.hangs, ("raised", "dropped", "confirmed")),
            (self.events, ("told", "counted", "dropped", "failed")),
            (self.channel_requests, RESULTS),
            (self.lost_seconds, (*sorted(_LOSSES), OTHER)),
        ):
            for result in results:
                counter.labels(result)
        for phase in ("total", *sorted(_PHASES), OTHER):
            self.recovery_seconds.labels(phase)
        for cause in (*sorted(_CAUSES), OTHER):
            for rung in Rung:
                self.restarts.labels(cause, rung.value)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when metrics are read."""
        Gauge(f"trainmaster_{name}", text, registry=self.registry).set_function(value)

    def render(self, now: float) -> bytes:
        """Return the text for Prometheus. `now`: a time of the monotonic clock that `wrote` gets."""
        self._settle(now)
        return generate_latest(self.registry)

    def called(self, verb: str, kind: str, seconds: float, code: int) -> None:
        """Count a call of the API server, as `ApiCalls` of the adapter."""
        kind = kind if kind in KINDS else OTHER
        self.api_calls.labels(verb, kind, str(code)).inc()
        self.api_seconds.labels(verb, kind).observe(seconds)

    def wrote(self, key: JobKey, old: JobState, new: JobState, now: float) -> None:
        """Record the write of a job's status: count the recoveries that it begins or ends, and the time that it
        accounts for."""
        self._account(old, new)
        self._suspect(old, new)
        if new.recoveries is old.recoveries:
            return
        known = {recovery.round: recovery for recovery in old.recoveries}
        for recovery in new.recoveries:
            before = known.get(recovery.round)
            if before is None:
                cause = recovery.cause if recovery.cause in _CAUSES else OTHER
                self.restarts.labels(cause, recovery.rung.value).inc()
                if cause in _SILENCE:
                    self.agents_lost.inc(_replaced(old, new) if recovery.rung is Rung.POD else 1)
            if recovery.totalSeconds is None or recovery.overtaken:
                continue
            unsettled = self._unsettled.get((key, recovery.round))
            if unsettled is not None:
                self._unsettled[key, recovery.round] = (unsettled[0], recovery)
            elif before is None or before.totalSeconds is None:
                self._unsettled[key, recovery.round] = (now, recovery)
                self.recovery_seconds.labels("total").observe(recovery.totalSeconds)
                self.lost_steps.inc(recovery.lostSteps or 0)
        self._settle(now)

    def _account(self, old: JobState, new: JobState) -> None:
        if new.accountedAt == old.accountedAt:
            return
        self.useful_seconds.inc(max(0.0, new.usefulSeconds - old.usefulSeconds))
        for cause, seconds in new.lost.items():
            more = seconds - old.lost.get(cause, 0.0)
            if more > 0:
                self.lost_seconds.labels(cause if cause in _LOSSES else OTHER).inc(more)

    def _suspect(self, old: JobState, new: JobState) -> None:
        before, now = old.suspicion, new.suspicion
        if now is not None and (before is None or before.round != now.round):
            self.hangs.labels("raised").inc()
        elif now is not None and before is not None and now.confirmed and not before.confirmed:
            self.hangs.labels("confirmed").inc()
        elif now is None and before is not None and before.round == new.round:
            self.hangs.labels("dropped").inc()
        if new.straggler is not None and new.straggler.told and not (old.straggler and old.straggler.told):
            self.stragglers.inc()

    def _settle(self, now: float) -> None:
        """Observe the phases of recoveries that ended a while ago, because agents report their phases one after the
        other."""
        for key, (ended_at, recovery) in list(self._unsettled.items()):
            if now - ended_at < SETTLED_S:
                return  # The entries are ordered by their end.
            del self._unsettled[key]
            for phase, seconds in recovery.clock.items():
                self.recovery_seconds.labels(phase if phase in _PHASES else OTHER).observe(seconds)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"trainmaster_{name}", text, buckets=_FAST_S, registry=self.registry)


class _First(Collector):
    """Does something before the registry's other collectors are read, and has no metrics itself."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def collect(self) -> Iterator[Metric]:
        self._act()
        yield from ()


def _replaced(old: JobState, new: JobState) -> int:
    """Return how many pods of the old status the new one replaces; 1 if that is unknown."""
    pairs = zip(unpack_counts(old.incarnations), unpack_counts(new.incarnations), strict=False)
    return max(1, sum(before < now for before, now in pairs))
