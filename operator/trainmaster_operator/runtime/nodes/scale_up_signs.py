"""Signs that a cluster makes room for jobs whose pods wait: Events of autoscalers about their pods, and new nodes.

The cluster autoscaler writes the Event TriggeredScaleUp about a pod for which it adds a node; Karpenter writes the
Event Nominated. An operator may read Events wherever jobs run. To see new nodes it needs a right that the chart grants
with `nodes.list`; without it, that sign is missing. Both are read only where they matter: while some pods of a job hold
places and others find none, because the job may then give them back (`planning.placement.gang_release`); and while
pods wait although there are nodes that the operator has tainted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainmaster_operator.cluster.nodes_port import Nodes
from trainmaster_operator.cluster.port import ApiError, Cluster, Forbidden, Object
from trainmaster_operator.planning.facts.observation import NewPlaces, PodRecord
from trainmaster_operator.planning.facts.timestamps import seconds_of
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock

log = logging.getLogger(__name__)

REASONS = ("TriggeredScaleUp", "Nominated")
LOOK_S = 15.0  # Seconds between two reads of the Events about one pod of a job.
NODES_LOOK_S = 60.0  # Seconds between two lists of all nodes, for all jobs together.
ASK_AGAIN_S = 600.0

MISSING = (
    "this operator may not list nodes, so a job that waits for places doesn't see nodes join; the chart's value "
    "nodes.list grants the right"
)


@dataclass
class _Waiting:
    due: float  # Monotonic.
    looks: int = 0
    asked_at: float = float("-inf")  # Seconds since 1970: the newest Event.


class NewPlacesSeen:
    """The signs for each waiting job. Only this leader keeps them. `nodes`: None if the operator does not have the
    right to list nodes."""

    def __init__(
        self, cluster: Cluster, clock: Clock, nodes: Nodes | None, say: Callable[[str], None] = log.warning
    ) -> None:
        self._cluster, self._clock, self._nodes, self._say = cluster, clock, nodes, say
        self._said = False
        self._waiting: dict[JobKey, _Waiting] = {}
        self._nodes_due = float("-inf")
        self._joined_at = float("-inf")  # Seconds since 1970: the newest node.

    def seen(self, key: JobKey) -> NewPlaces:
        """Return the signs for a job, for the planner."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return NewPlaces()
        now = self._clock.now()
        return NewPlaces(max(0.0, now - waiting.asked_at), max(0.0, now - self._joined_at))

    async def look(
        self, key: JobKey, pods: Sequence[PodRecord], *, even_if_none_is_held: bool = False
    ) -> tuple[bool, float]:
        """Return whether there is a new sign for a job, and the seconds until the next look. `pods`: all pods of the
        job. `even_if_none_is_held`: signs matter too if no pod of the job has a place."""
        lacking = [pod for pod in pods if pod.node == "" and pod.reason == "Unschedulable" and not pod.deleting]
        held = even_if_none_is_held or any(pod.node and not pod.deleting for pod in pods)
        if not lacking or not held:
            self._waiting.pop(key, None)
            return False, float("inf")
        now = self._clock.monotonic()
        waiting = self._waiting.setdefault(key, _Waiting(now))
        if now < waiting.due:
            return False, waiting.due - now
        before = (waiting.asked_at, self._joined_at)
        pod = lacking[waiting.looks % len(lacking)]
        waiting.looks += 1
        waiting.due = now + LOOK_S
        try:
            events = await self._cluster.events_about(key.namespace, pod.uid)
            waiting.asked_at = max([waiting.asked_at, *map(_time, filter(_tells_of_a_node, events))])
        except ApiError as error:
            log.warning("%s: the events of pod %s were not read: %s", key, pod.name, error)
        await self._look_at_nodes(now)
        return before != (waiting.asked_at, self._joined_at), LOOK_S

    def forget(self, key: JobKey) -> None:
        self._waiting.pop(key, None)

    async def _look_at_nodes(self, now: float) -> None:
        if now < self._nodes_due:
            return
        self._nodes_due = now + NODES_LOOK_S
        if self._nodes is None:
            self._miss("")
            return
        try:
            found = await self._nodes.list()
        except Forbidden as error:
            self._nodes_due = now + ASK_AGAIN_S
            self._miss(str(error))
        except ApiError as error:
            log.warning("nodes were not listed: %s", error)
        else:
            self._joined_at = max(
                [self._joined_at, *(seconds_of(node.created_at) for node in found if node.created_at)]
            )

    def _miss(self, words: str) -> None:
        if not self._said:
            self._said = True
            self._say(f"{MISSING}: {words}" if words else MISSING)


def _tells_of_a_node(event: Object) -> bool:
    return event.get("reason") in REASONS and _time(event) > float("-inf")


def _time(event: Object) -> float:
    series = event.get("series") or {}
    told = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    text = next((time for time in told if time), None)
    return seconds_of(text) if text else float("-inf")
