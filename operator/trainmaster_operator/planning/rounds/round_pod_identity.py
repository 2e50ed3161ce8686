"""Whether the pods of an open round are still those with which it opened.

Names and incarnations do not show it. The API server may carry out a request to create a pod long after the operator
gave up on it and repeated it, and after somebody deleted the pod. The pod that is created then has the name and the
incarnation of a pod that took part in the round, and it would take part once more. Uids show the difference, so a round
remembers the uids of its pods, as a checksum of eight digits because a status has no room for thousands of uids.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from trainmaster_operator.api.compact_lists import unpack_counts, unpack_ranges
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.view import WORKER, is_current


def digest(uids: Iterable[str]) -> str:
    """Return a checksum of the uids of a round's pods, in the order of the ranks, as eight hexadecimal digits."""
    return _digest(tuple(uids))


@lru_cache(maxsize=256)
def _digest(uids: tuple[str, ...]) -> str:
    return f"{zlib.crc32(','.join(uids).encode()):08x}"


def replaced(status: JobState, pods: Iterable[PodRecord]) -> bool:
    """Return whether the current pods of the open round's slots differ from those with which it opened. `pods`: all
    pods of the job. Return False while a slot has no pod: then that pod is missing."""
    incarnations = unpack_counts(status.incarnations)
    of_slot = {pod.slot: pod for pod in pods if pod.role == WORKER and is_current(pod, incarnations)}
    return differ(status, unpack_ranges(status.roundMap), of_slot)


def differ(status: JobState, members: Sequence[int], of_slot: Mapping[int, PodRecord]) -> bool:
    """Return whether the pods in `of_slot` differ from those with which the round of the status opened. Return False
    while a member has no pod."""
    if not status.roundStore or not status.roundPods:
        return False
    uids = [of_slot[slot].uid for slot in members if slot in of_slot]
    return len(uids) == len(members) and digest(uids) != status.roundPods
