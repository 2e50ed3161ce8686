"""Kubernetes Events for people. They are written in the background: they may be lost, and nothing waits for them. If
the API server does not accept an Event now, it is tried again for a while; after that its text is in the log.

Repetitions are one Event with a count. A job that emits too many events is limited without an effect on other jobs.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from trainmaster_operator.api.api_group import API_VERSION
from trainmaster_operator.cluster.port import EVENT, JOB, KINDS, AlreadyExists, ApiError, Cluster, NotFound, Object
from trainmaster_operator.planning.facts.observation import EventType, PlannedEvent
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.lasting_api_failures import may_pass

log = logging.getLogger(__name__)

BACKLOG = 1000
DELAY_S = 0.1  # What an event reports happens first: agents wait for their directives.
# Maximum burst of events about one job, separately for the operator's decisions and for reports of its agents, so that
# neither crowds out the other.
BURST = 30
REFILL_S = 20.0  # Seconds after which one more event is allowed.
REPEAT_S = 5.0  # Seconds between two writes of counts.
REMEMBERED = 4096  # Maximum number of events whose repetitions are counted, and of jobs whose events are limited.
FORGOTTEN_S = 600.0  # Seconds after which a repetition counts as a new event.
DRAIN_S = 0.5
TRIES = 6  # Maximum number of attempts to write an Event that the API server does not accept now.
FIRST_WAIT_S = 1.0  # The wait doubles with each attempt: half a minute in all, or more if the server asks for it.
_MESSAGE_LIMIT = 1000
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
# Endings of the reasons of warnings.
_BAD = ("Failed", "Lost", "Damaged", "Pending", "Fallback", "Refused", "Unkillable")


class _Content(NamedTuple):
    """What makes two events the same."""

    source: str  # The uid of the job, and whether the operator or an agent reports it.
    type: str
    reason: str
    message: str


def timestamp(seconds: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339, in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class _Told:
    """An Event that exists in the cluster or waits to be written."""

    source: str
    body: Object
    last: float  # When it was last emitted.
    count: int = 1
    written: int = 0  # The count in the cluster; 0: the Event does not exist there.
    waiting: bool = False  # True if it waits to be written.
    failures: int = 0  # In succession.


@dataclass
class _Bucket:
    tokens: float = BURST
    at: float = 0.0


class EventWriter:
    """Writes Events. The event of a decision gets its name from the status write to which it belongs, so it exists
    only once even if it is emitted twice."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        component: str = "trainmaster",
        counted: Callable[[str], None] = lambda result: None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._component = component
        self._counted = counted
        self._backlog: deque[_Told] = deque()
        self._known: OrderedDict[_Content, _Told] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._repeated: deque[_Told] = deque()
        self._waiting = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._later: dict[int, asyncio.TimerHandle] = {}  # Timers of Events that are tried again, by number.
        self._number = 0

    def emit(self, job: JobRecord, events: Sequence[PlannedEvent]) -> None:
        """Emit the events of a status write that has taken effect. `job`: the job as it was written."""
        for number, event in enumerate(events):
            log.info("%s: %s: %s", job.key, event.reason, event.message)
            name = f"{job.key.name}.{job.version}.{number}"
            self._tell(job, f"{job.uid}/operator", event.type, event.reason, event.message, name)

    def relay(self, job: JobRecord, reason: str, message: str) -> None:
        """Emit an event that an agent reports. Its text may be anything."""
        reason = reason if _REASON.fullmatch(reason) else "Agent"
        type = EventType.WARNING if reason.endswith(_BAD) else EventType.NORMAL
        self._tell(job, f"{job.uid}/agents", type, reason, message, self._new_name(job))

    def remark(self, job: JobRecord, type: EventType, reason: str, message: str) -> None:
        """Emit an event that belongs to no status write."""
        self._tell(job, f"{job.uid}/operator", type, reason, message, self._new_name(job))

    def forget(self, job: JobKey) -> None:
        """Forget the repetitions of events about a job that is gone."""
        self._repeated = deque(told for told in self._repeated if not _is_about(told, job))

    async def run(self) -> None:
        """Write waiting events until cancelled."""
        while True:
            await self._waiting.wait()
            await asyncio.sleep(DELAY_S)
            self._waiting.clear()
            await self._write_all()

    async def drain(self) -> None:
        """Write the waiting events before the process ends, for at most DRAIN_S seconds."""
        for timer in (self._timer, *self._later.values()):
            if timer is not None:
                timer.cancel()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._write_all()
        except TimeoutError:
            log.info("%d events were not written", len(self._backlog))

    def _new_name(self, job: JobRecord) -> str:
        self._number += 1
        return f"{job.key.name}.{int(self._clock.now() * 1e6):x}.{self._number:x}"

    def _tell(self, job: JobRecord, source: str, type: EventType, reason: str, message: str, name: str) -> None:
        now = self._clock.monotonic()
        content = _Content(source, type.value, reason, message[:_MESSAGE_LIMIT])
        known = self._known.get(content)
        if known is not None and now - known.last < FORGOTTEN_S:
            known.count += 1
            known.last = now
            self._known.move_to_end(content)
            self._repeat(known)
            return
        if not self._may_speak(source, now):
            self._counted("dropped")
            return
        told = _Told(source, self._body(job, content, name), now)
        self._known[content] = told
        self._known.move_to_end(content)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        told.waiting = True
        self._queue(told)

    def _queue(self, told: _Told) -> None:
        if len(self._backlog) >= BACKLOG:
            self._backlog.popleft().waiting = False
            self._counted("dropped")
        self._backlog.append(told)
        self._waiting.set()

    def _repeat(self, told: _Told) -> None:
        if told.waiting:
            return
        told.waiting = True
        self._repeated.append(told)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPEAT_S, self._repeat_all)

    def _repeat_all(self) -> None:
        """Queue the counts of repeated events, as far as the limits of their jobs allow."""
        self._timer = None
        waiting, self._repeated = self._repeated, deque()
        now = self._clock.monotonic()
        for told in waiting:
            if self._may_speak(told.source, now):
                self._queue(told)
            else:
                told.waiting = False
                self._repeat(told)

    def _may_speak(self, source: str, now: float) -> bool:
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = _Bucket(at=now)
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(source)
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.at) / REFILL_S)
        bucket.at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    async def _write_all(self) -> None:
        """Write each event that waits at this moment once."""
        for _ in range(len(self._backlog)):
            if not self._backlog:
                return
            told = self._backlog.popleft()
            told.waiting = False
            await self._write(told)

    async def _write(self, told: _Told) -> None:
        count = told.count
        meta = told.body["metadata"]
        try:
            if told.written:
                try:
                    await self._cluster.patch(EVENT, meta["namespace"], meta["name"], self._repetition(count))
                    self._counted("counted")
                except NotFound:  # The Event has expired: Events live for an hour.
                    told.count = count = 1
                    told.body = {**told.body, "firstTimestamp": self._now()}
                    await self._create(told, count)
            else:
                await self._create(told, count)
            told.written, told.failures = count, 0
        except ApiError as error:
            told.failures += 1
            if may_pass(error) and told.failures < TRIES:
                self._try_later(told, max(error.retry_after_s, FIRST_WAIT_S * 2.0 ** (told.failures - 1)))
                return
            told.failures = 0
            self._counted("failed")
            log.warning(
                "event %s/%s was not written: %s; it says %s: %s",
                *(meta["namespace"], meta["name"], error, told.body["reason"], told.body["message"]),
            )

    def _try_later(self, told: _Told, wait_s: float) -> None:
        def requeue() -> None:
            del self._later[number]
            self._queue(told)

        told.waiting = True
        self._number += 1
        number = self._number
        self._later[number] = asyncio.get_running_loop().call_later(wait_s, requeue)

    async def _create(self, told: _Told, count: int) -> None:
        try:
            await self._cluster.create(EVENT, {**told.body, **self._repetition(count)})
        except AlreadyExists:
            return  # An earlier operator has written it.
        self._counted("told")

    def _repetition(self, count: int) -> Object:
        return {"count": count, "lastTimestamp": self._now()}

    def _now(self) -> str:
        return timestamp(self._clock.now())[:19] + "Z"

    def _body(self, job: JobRecord, content: _Content, name: str) -> Object:
        return {
            "apiVersion": KINDS[EVENT].api_version,
            "kind": EVENT,
            "metadata": {"namespace": job.key.namespace, "name": name},
            "type": content.type,
            "reason": content.reason,
            "message": content.message,
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": JOB,
                "namespace": job.key.namespace,
                "name": job.key.name,
                "uid": job.uid,
                "resourceVersion": job.version,
            },
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": self._now(),
        }


def _is_about(told: _Told, job: JobKey) -> bool:
    about = told.body["involvedObject"]
    return (about["namespace"], about["name"]) == job
