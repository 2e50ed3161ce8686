"""All pods of a job run or none: pods that hold a place without use are deleted.

Two jobs that each have half of the pods they need would wait for each other for ever. So if some pods of a job have had
a place for `scheduling.releaseSeconds` while the others found none, the job deletes all of them and tries again later.
These times differ between jobs and grow with each attempt, so that one of two jobs gives up first and the other one is
complete before it comes back.

A growing cluster does not lack places. While pods of the job find places one after the other, nothing is deleted. The
same holds for a short time after an autoscaler announced a node or a node joined; but these two promise nothing to this
job, so they delay the deletion only for a few times as long as the job waits in any case.
"""

from __future__ import annotations

import hashlib

from trainmaster_operator.api.compact_lists import pack_counts
from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.job_state import ReleasedStatus
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339, since, until
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.placement import scheduling_gates
from trainmaster_operator.planning.rounds import allowed_sizes

SCHEDULED = "Scheduled"  # The condition that says since when pods find no place.
FIRST_RETRY_S = 20.0
LONGEST_RETRY_S = 600.0
MOST_DOUBLINGS = 16  # Far more than the longest wait needs. A job may try for weeks, and 2.0 ** 1024 is no float.
FRESH_S = 600.0
"""Seconds for which a sign that places appear delays the deletion; `scheduling.releaseSeconds` if that is less."""
SIGNS_COUNT_FOR = 4
"""Number of `scheduling.releaseSeconds` after the job's own pods last found a place for which the other signs count:
an autoscaler that fails again and again must not keep two jobs from giving up."""


def release(view: View) -> Change | None:
    """Delete the pods so that others can use their places. Their incarnation ends, which fences off what may run in
    them; no restart is counted."""
    due = _due_s(view)
    if due is None or due > 0:
        return None
    times = _times(view) + 1
    wait = doubled_wait_s(FIRST_RETRY_S, LONGEST_RETRY_S, times) * (0.5 + _share(view, f"away {times}"))
    placed = sum(1 for pod in view.pods if _holds(pod))
    return changed(
        view.status,
        warning(
            "GangReleased",
            f"{placed} of {view.slots} pods were scheduled and the others were not: the operator deletes all of them "
            f"and creates them again in {wait:.0f} s",
        ),
        incarnations=pack_counts([max(view.incarnations) + 1] * view.slots),
        released=ReleasedStatus(times=times, retryAt=rfc3339(view.now + wait)),
    )


def release_due_s(view: View) -> float | None:
    """Return the seconds until the pods are deleted; None if there is no reason to."""
    return _due_s(view)


def retry_in_s(view: View) -> float:
    """Return the seconds for which no pod is created after such a deletion; 0 if pods may be created."""
    released = view.status.released
    return until(released.retryAt, view.now) if released is not None else 0.0


def doubled_wait_s(first_s: float, longest_s: float, times: int) -> float:
    """Return the seconds to wait after so many tries: twice as long after each, at most `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(times - 1, MOST_DOUBLINGS))


def _due_s(view: View) -> float | None:
    """Return the seconds until the pods are deleted; None if there is no reason to."""
    hold = view.spec.scheduling.releaseSeconds
    if hold == 0 or view.round_is_open or scheduling_gates.hold(view) or not any(_holds(pod) for pod in view.pods):
        return None
    if sum(map(_holds, view.pods)) >= allowed_sizes.fewest(view):
        return None  # Only a spare is missing, or the job will start with fewer pods: it does not hold places in vain.
    if view.refusal is None and not any(_finds_no_place(pod) for pod in view.pods):
        return None
    known = next((c for c in view.status.conditions if c.type == SCHEDULED and c.status == "False"), None)
    if known is None:
        return None  # This pass writes the condition.
    waited = min(since(known.lastTransitionTime, view.now), scheduling_gates.since_lifted_s(view.status, view.now))
    if view.status.released is not None:
        waited = min(waited, since(view.status.released.retryAt, view.now))
    # The wait is between once and twice the time in the spec.
    return max(hold * (1 + _share(view, f"hold {_times(view)}")) - waited, _fresh_for_s(view, hold, waited))


def _fresh_for_s(view: View, hold: float, waited: float) -> float:
    """Return the seconds for which the newest sign that places appear still counts; 0 or less if there is none."""
    placed_s = min((since(p.placed_at, view.now) for p in view.pods if p and p.placed_at), default=float("inf"))
    signs = [placed_s]
    if min(waited, placed_s) < SIGNS_COUNT_FOR * hold:
        signs += [view.observed.new_places.asked_s, view.observed.new_places.joined_s]
    return min(hold, FRESH_S) - min(signs)


def _holds(pod: PodRecord | None) -> bool:
    return pod is not None and pod.node != "" and not pod.deleting


def _finds_no_place(pod: PodRecord | None) -> bool:
    return pod is not None and pod.node == "" and pod.reason == "Unschedulable"


def _times(view: View) -> int:
    return view.status.released.times if view.status.released is not None else 0


def _share(view: View, what: str) -> float:
    """Return a number in [0, 1) that is always the same for one job and practically random between jobs."""
    digest = hashlib.sha256(f"{view.observed.uid}/{what}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32
