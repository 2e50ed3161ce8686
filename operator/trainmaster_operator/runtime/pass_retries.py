"""Runs the passes over queued jobs, and decides what follows from an error of a pass: how soon the next one comes, and
what people see of the error."""

from __future__ import annotations

import asyncio
import logging

from trainmaster_operator.cluster.port import (
    ApiError,
    Conflict,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.planning.facts.observation import EventType
from trainmaster_operator.runtime.cache.cache_records import (
    JobRecord,
    PodEntry,
)
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.lasting_api_failures import (
    STATUS_WRITE,
    ApiFailures,
    is_terminating,
    may_pass,
    reason_of,
    words_of,
)
from trainmaster_operator.runtime.leader.lease import Leadership, NotLeading
from trainmaster_operator.runtime.leader.operator_conflicts import Rivalry
from trainmaster_operator.runtime.observability.events import EventWriter
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.reconcile import Reconciler
from trainmaster_operator.runtime.work_queue import ShutDown, WorkQueue

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.005  # After an error of a pass. The wait doubles with each further error of the job.
LONGEST_RETRY_S = 1000.0
CONFLICT_LIMIT_S = 0.5
REFUSED_LIMIT_S = 30.0  # A role with too few rights may be corrected, and the operator gets no notice of that.
OUTAGE_LIMIT_S = 5.0  # An API server that comes back is used soon, not after the back-off of a failing job.
SLOW_PASS_S = 1.0  # Seconds after which the API server seems to be away, so agents may restart ranks by themselves.
SLOW_PASS_S_PER_POD = 1e-3  # Seconds to add per pod, so that the size of the job is not the reason.


class PassRetries:
    """The workers of one operator. An error of a job affects that job only."""

    def __init__(
        self,
        *,
        clock: Clock,
        queue: WorkQueue[JobKey],
        jobs: Informer[JobRecord],
        pods: Informer[PodEntry],
        fleet: Fleet,
        leader: Leadership,
        reconciler: Reconciler,
        failures: ApiFailures,
        events: EventWriter,
        metrics: Metrics,
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._jobs = jobs
        self._pods = pods
        self._fleet = fleet
        self._leader = leader
        self._reconciler = reconciler
        self._failures = failures
        self._events = events
        self._metrics = metrics

    async def work(self) -> None:
        """Run passes over the jobs in the queue until it is shut down. Raise NotLeading if the lease is lost."""
        while True:
            try:
                key = await self._queue.get()
            except ShutDown:
                return
            try:
                await self._process(key)
            finally:
                self._queue.done(key)

    async def _process(self, key: JobKey) -> None:
        """Run one pass. An error of a job affects that job only; a lost lease ends the process."""
        asked_s = self._failures.wait_s(key)
        if asked_s > 0:
            self._queue.add_after(key, asked_s)  # That pass will see all changes until then.
            return
        started = self._clock.monotonic()
        self._leader.check()
        slow_s = SLOW_PASS_S + self._pods.count(key) * SLOW_PASS_S_PER_POD
        slow = asyncio.get_running_loop().call_later(slow_s, self._fleet.tell_unable, key, True)
        try:
            after_s = await self._reconciler.reconcile(key)
        except NotLeading:
            raise
        except Conflict as error:
            result = "conflict"
            lasts = self._failures.note(key, error)
            await self._refresh(key)
            self._queue.add_rate_limited(key, OUTAGE_LIMIT_S if lasts else CONFLICT_LIMIT_S)
            if lasts:
                await self._quarantine(key, error)
        except Rivalry as error:
            result = "error"
            self._tell(key, error)  # Write no status: the other operator would answer with a write.
            self._queue.add_rate_limited(key)
        except NotFound as error:
            await self._refresh(key)
            if self._jobs.get(key) is None:
                result = "ok"  # The job itself is gone, and its DELETED event is on its way or was lost.
                self._failures.passed(key)
                self._queue.add(key)
            else:
                result = "error"
                await self._bad(key, error)
        except (Unavailable, TooManyRequests) as error:
            result = "unavailable"
            self._fleet.tell_unable(key, True)
            lasts = self._failures.note(key, error)
            delay_s = max(error.retry_after_s, self._queue.add_rate_limited(key, OUTAGE_LIMIT_S))
            log.warning("%s: %s: again in %.3f s", key, words_of(error), delay_s)
            if lasts:
                await self._quarantine(key, error)
        except ApiError as error:
            result = "error"
            self._failures.note(key, error)
            await self._bad(key, error)
        except Exception as error:
            log.exception("%s: a pass failed", key)
            result = "error"
            await self._bad(key, error)
        else:
            result = "ok"
            self._fleet.tell_unable(key, False)
            self._queue.forget(key)
            self._failures.passed(key)
            if after_s is not None:
                self._queue.add_after(key, max(after_s, 0.001))
        finally:
            slow.cancel()
        self._metrics.passes.labels(result).inc()
        self._metrics.pass_seconds.observe(self._clock.monotonic() - started)

    async def _bad(self, key: JobKey, error: Exception) -> None:
        if isinstance(error, ApiError) and is_terminating(error):
            log.warning("%s: %s: not tried again", key, words_of(error))
        else:
            limit_s = REFUSED_LIMIT_S if isinstance(error, ApiError) else None
            delay_s = self._queue.add_rate_limited(key, limit_s)
            log.error("%s: %s: %s: again in %.3f s", key, type(error).__name__, words_of(error), delay_s)
        await self._quarantine(key, error)

    async def _refresh(self, key: JobKey) -> None:
        try:
            await self._reconciler.refresh(key)
        except ApiError as error:
            log.warning("%s: not refreshed: %s", key, error)

    async def _quarantine(self, key: JobKey, error: Exception) -> None:
        """Report the error by an event, and by a condition unless the status could not be written. Where the same write
        may be accepted a moment later, a condition that is accepted would be wrong from then on, perhaps on a job that
        has ended meanwhile: the reply to the write of its end may be what was lost."""
        self._tell(key, error)
        if isinstance(error, ApiError) and error.attempt == STATUS_WRITE and (error.retry_after_s or may_pass(error)):
            return
        reason = reason_of(error) if isinstance(error, ApiError) else type(error).__name__
        try:
            await self._reconciler.quarantine(key, reason, words_of(error))
        except ApiError as refusal:
            log.warning("%s: its error could not be reported: %s", key, refusal)

    def _tell(self, key: JobKey, error: Exception) -> None:
        record = self._jobs.get(key)
        if record is not None:
            reason = reason_of(error) if isinstance(error, ApiError) else type(error).__name__
            self._events.remark(record, EventType.WARNING, "ReconcileError", f"{reason}: {words_of(error)}")
