"""Why a pod that has its node doesn't start, in the words of its Events.

A kubelet writes an Event at once when an image can't be pulled, and puts it into the pod's status at its next look 10
to 15 s later; a volume that doesn't mount stands in no status at all. So the Events of one pod of a job that waits are
read, soon at first, then ever more rarely.
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
SOON = 3  # looks at that distance; after them each waits twice as long
LONGEST_WAIT_S = 60.0

_OLD_NEWS = ("FailedScheduling",)  # it has its node
_OFTEN_PASSES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")  # told from the second time on
_REASONS = {
    "Failed to pull image": "ErrImagePull",
    "Back-off pulling image": "ImagePullBackOff",
    "Failed to inspect image": "ImageInspectError",
}
"""What an Event's message begins with, for the reason that the pod's status will give."""

Words = tuple[str, str]


@dataclass
class _Waiting:
    due: float  # monotonic
    looks: int = 0
    told: dict[str, Words] = field(default_factory=dict)  # by uid of the pod


class Troubles:
    """Soft state of this leader."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._waiting: dict[JobKey, _Waiting] = {}

    def add_reasons(self, key: JobKey, pods: tuple[PodRecord, ...]) -> tuple[PodRecord, ...]:
        """Return `pods`, each waiting one with the reason and message of its Events where its status gives none."""
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
        """Return (whether there is news, seconds until the next look). `pods`: of the job, before `add_reasons`."""
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
        except ApiError as error:  # a hint that is missing
            waiting.due = now + max(wait_s, error.wait_s)
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
    """(reason, message) of the last warning, unless things went on after it."""
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
        return _reason(event) != "Failed"  # the kubelet follows up its sentence with one of a single word
    return reason not in _OLD_NEWS and (reason not in _OFTEN_PASSES or (event.get("count") or 1) > 1)


def _reason(event: Object) -> str:
    message = event.get("message") or ""
    for beginning, reason in _REASONS.items():
        if message.startswith(beginning):
            return reason
    return event.get("reason") or "Unknown"
