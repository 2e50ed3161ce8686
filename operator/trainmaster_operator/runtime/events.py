"""Kubernetes Events for people, written in the background: they may be lost, and nothing waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from trainmaster_operator.api.meta import API_VERSION
from trainmaster_operator.cluster.port import EVENT, JOB, KINDS, AlreadyExists, ApiError, Cluster, Object
from trainmaster_operator.planning.observation import PlannedEvent
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.conditions import timestamp
from trainmaster_operator.runtime.records import JobRecord

log = logging.getLogger(__name__)

BACKLOG = 1000
DELAY_S = 0.1  # what an event tells of happens first: agents wait for their directives
_MESSAGE_LIMIT = 1000


class EventWriter:
    """An event is named after the status write that it belongs to, so that telling it twice is telling it once."""

    def __init__(self, cluster: Cluster, clock: Clock, component: str = "trainmaster") -> None:
        self._cluster = cluster
        self._clock = clock
        self._component = component
        self._backlog: deque[Object] = deque(maxlen=BACKLOG)
        self._waiting = asyncio.Event()

    def emit(self, job: JobRecord, events: Sequence[PlannedEvent]) -> None:
        now = self._clock.now()
        for number, event in enumerate(events):
            log.info("%s: %s: %s", job.key, event.reason, event.message)
            self._backlog.append(
                {
                    "apiVersion": KINDS[EVENT].api_version,
                    "kind": EVENT,
                    "metadata": {"namespace": job.key.namespace, "name": f"{job.key.name}.{job.version}.{number}"},
                    "type": event.type.value,
                    "reason": event.reason,
                    "message": event.message[:_MESSAGE_LIMIT],
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
                    "eventTime": timestamp(now).replace("Z", "000Z"),
                    "firstTimestamp": timestamp(now)[:19] + "Z",
                    "lastTimestamp": timestamp(now)[:19] + "Z",
                    "count": 1,
                }
            )
        self._waiting.set()

    async def run(self) -> None:
        while True:
            await self._waiting.wait()
            await asyncio.sleep(DELAY_S)
            self._waiting.clear()
            while self._backlog:
                event = self._backlog.popleft()
                try:
                    await self._cluster.create(EVENT, event)
                except AlreadyExists:
                    pass
                except ApiError as error:
                    log.warning("an event was not told: %s: %s", event["reason"], error)
