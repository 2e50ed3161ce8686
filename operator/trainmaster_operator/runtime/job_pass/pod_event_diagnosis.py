"""Why a pod on a node does not start, in the words of its Events.

If an image cannot be pulled, a kubelet writes an Event at once and updates the pod's status only 10 to 15 s later; a
volume that cannot be mounted appears in no status at all. So the Events of one pod of a waiting job are read, often at
first and then more rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainmaster_operator.cluster.objects import event_time
from trainmaster_operator.cluster.port import ApiError, Cluster, Object
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock

FIRST_LOOK_S = 3.0
SOON = 3  # Number of looks at this distance. After that each wait is twice as long as the one before.
LONGEST_WAIT_S = 60.0

_OLD_NEWS = ("FailedScheduling",)  # The pod has found a node since.
# These are reported only when they have occurred twice.
_OFTEN_PASSES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_REASONS = {
    "Failed to pull image": "ErrImagePull",
    "Back-off pulling image": "ImagePullBackOff",
    "Failed to inspect image": "ImageInspectError",
}
"""The beginning of an Event's message, and the reason that the pod's status will have."""

Words = tuple[str, str]


@dataclass
class _Waiting:
    due: float  # Monotonic.
    looks: int = 0
    told: dict[str, Words] = field(default_factory=dict)  # By uid of the pod.


class Troubles:
    """The reasons that Events give for pods that do not start. Only this leader keeps them."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._waiting: dict[JobKey, _Waiting] = {}

    def add_reasons(self, key: JobKey, pods: tuple[PodRecord, ...]) -> tuple[PodRecord, ...]:
        """Return `pods` with the reason and message of their Events for each waiting pod whose status has none."""
        waiting = self._waiting.get(key)
        words = waiting.told if waiting is not None else {}
        if not words:
            return pods
        return tuple(
            replace(pod, reason=words[pod.uid][0], message=words[pod.uid][1])
            if pod.uid in words and _waits(pod)
            else pod
            for pod in pods
        )

    async def look(self, key: JobKey, pods: Sequence[PodRecord]) -> tuple[bool, float]:
        """Read the Events of one waiting pod if it is time. Return (whether there is news, seconds until the next
        look). `pods`: the job's pods before `add_reasons`."""
        stuck = [pod for pod in pods if _waits(pod)]
        if not stuck:
            self._waiting.pop(key, None)
            return False, float("inf")
        now = self._clock.monotonic()
        waiting = self._waiting.setdefault(key, _Waiting(now + FIRST_LOOK_S))
        if now < waiting.due:
            return False, waiting.due - now
        pod = stuck[waiting.looks % len(stuck)]
        waiting.looks += 1
        wait_s = min(LONGEST_WAIT_S, FIRST_LOOK_S * 2 ** max(0, waiting.looks - SOON + 1))
        waiting.due = now + wait_s
        try:
            words = _newest(await self._cluster.events_about(key.namespace, pod.uid))
        except ApiError as error:  # Events are only a hint, so the pass continues without them.
            waiting.due = now + max(wait_s, error.retry_after_s)
            return False, waiting.due - now
        if words is None or waiting.told.get(pod.uid) == words:
            return False, wait_s
        waiting.told[pod.uid] = words
        return True, wait_s

    def forget(self, key: JobKey) -> None:
        self._waiting.pop(key, None)


def _waits(pod: PodRecord) -> bool:
    return pod.phase == "Pending" and pod.node != "" and not pod.deleting and not pod.reason


def _newest(events: Sequence[Object]) -> Words | None:
    """Return (reason, message) of the last warning, or None if the pod has progressed after it."""
    warnings = [event for event in events if event.get("type") == "Warning" and _counts(event)]
    if not warnings:
        return None
    last = max(warnings, key=event_time)
    if any(event.get("type") == "Normal" and event_time(event) > event_time(last) for event in events):
        return None
    return _reason(last), last.get("message") or ""


def _counts(event: Object) -> bool:
    reason = event.get("reason")
    if reason == "Failed":
        # The kubelet writes a second event with one word after its sentence; it is ignored.
        return _reason(event) != "Failed"
    return reason not in _OLD_NEWS and (reason not in _OFTEN_PASSES or (event.get("count") or 1) > 1)


def _reason(event: Object) -> str:
    message = event.get("message") or ""
    for beginning, reason in _REASONS.items():
        if message.startswith(beginning):
            return reason
    return event.get("reason") or "Unknown"
