"""Slots, incarnations, and the pods to create. Those to delete are in `replaced_pods`."""

from __future__ import annotations

from trainmaster_operator.api.compact_lists import pack_counts
from trainmaster_operator.planning.facts.observation import PodToCreate
from trainmaster_operator.planning.facts.view import WORKER, View
from trainmaster_operator.planning.placement import gang_release
from trainmaster_operator.planning.placement.replaced_pods import is_past_waiting


def raised(view: View, slots: tuple[int, ...]) -> str:
    """Return the packed incarnations with those of `slots` increased by one."""
    counts = list(view.incarnations)
    for slot in slots:
        counts[slot] += 1
    return pack_counts(counts)


def all_raised(view: View, slots: int | None = None) -> str:
    """Return packed incarnations for a new pod in every slot: one number that is higher than every earlier one."""
    return pack_counts([next_incarnation(view)] * (view.slots if slots is None else slots))


def next_incarnation(view: View) -> int:
    """Return a number that is higher than the incarnation of every present or former slot."""
    return max(*view.incarnations, view.status.workers.nextIncarnation - 1) + 1


def missing(view: View) -> tuple[PodToCreate, ...]:
    """Return the pods to create. No pod is created while another pod of its slot exists, unless `is_past_waiting` says
    that its replacement need not wait.

    While a round is open, no pod is created for a member: the round opened with all pods, so a missing one has either
    done its work or is a failure that ends the round first. A second pod of one incarnation must not join the ranks of
    the first.
    """
    if gang_release.retry_in_s(view) > 0 or _refused_for_s(view) > 0 or view.observed.revision_lost:
        return ()
    return _absent(view)


def missing_due_s(view: View) -> float | None:
    """Return the seconds until pods that cannot be created now are tried again; None if there are none."""
    waits = [wait for wait in (gang_release.retry_in_s(view), _refused_for_s(view)) if wait > 0]
    return max(waits) if waits and _absent(view) else None


def _absent(view: View) -> tuple[PodToCreate, ...]:
    taken = {pod.slot for pod in view.others if not is_past_waiting(view, pod)}
    return tuple(
        PodToCreate(WORKER, slot, view.incarnations[slot])
        for slot in (view.parked if view.round_is_open else range(view.slots))
        if view.pods[slot] is None and slot not in taken
    )


def _refused_for_s(view: View) -> float:
    refusal = view.observed.refusal
    return refusal.again_in_s if refusal is not None else 0.0
