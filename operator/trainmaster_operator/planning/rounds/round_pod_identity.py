"""Whether the pods of an open round are still those that it opened with.

Names and incarnations don't tell: the API server may carry out a request to create a pod long after it was given up
and repeated, and after the pod was deleted by somebody. The pod that comes then has the name and the incarnation of one
that has taken part in the round, and would take part once more. Uids tell, so a round remembers those of its pods; in
eight digits, since a status has no room for thousands of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from trainmaster_operator.api.meta import unpack_counts, unpack_ranges
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.view import WORKER, is_current


def digest(uids: Iterable[str]) -> str:
    """Of the uids of a round's pods, in the order of the ranks."""
    return _digest(tuple(uids))


@lru_cache(maxsize=256)
def _digest(uids: tuple[str, ...]) -> str:
    return f"{zlib.crc32(','.join(uids).encode()):08x}"


def replaced(status: JobState, pods: Iterable[PodRecord]) -> bool:
    """Whether, of all pods of a job, those that the open round's slots have now are not those that it opened with.
    False as long as a slot has none: then that one is gone."""
    incarnations = unpack_counts(status.incarnations)
    of_slot = {pod.slot: pod for pod in pods if pod.role == WORKER and is_current(pod, incarnations)}
    return differ(status, unpack_ranges(status.roundMap), of_slot)


def differ(status: JobState, members: Sequence[int], of_slot: Mapping[int, PodRecord]) -> bool:
    """The same, of the pods that the slots have."""
    if not status.roundStore or not status.roundPods:
        return False
    uids = [of_slot[slot].uid for slot in members if slot in of_slot]
    return len(uids) == len(members) and digest(uids) != status.roundPods
