"""When a round opens, which slots take part in which rank order, and on which store."""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.contract.wire import StoreAddress
from trainmaster_operator.api.compact_lists import pack_ranges
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.change import Change, changed, normal
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import AgentRecord, PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import ENDED, View
from trainmaster_operator.planning.placement import scheduling_gates
from trainmaster_operator.planning.rounds import allowed_sizes, memory_peers, round_pod_identity

STORE_WAIT_S = 10.0
"""Seconds for which a script's round waits for the store in the pod of rank 0 before it uses another one, and for
which any round waits before it uses a store that seems to be used already."""

OWN_SLOTS_WAIT_S = 10.0
"""Seconds for which a job's first round waits for the first slots, so that rank n is on worker n unless that takes
too long."""

USED_STORES = 4
"""Number of store addresses that are remembered: as many as agents may still offer in their last reports."""


def open_round(view: View) -> Change | None:
    """Open the first round, or the one that forms, once enough pods have an agent and a store is offered. Return
    None until then."""
    if view.round_is_open:
        return None
    order = next_order(view)
    store = offered_store(view, order) if order else None
    if order is None or store is None:
        return None
    number = max(1, view.status.round)
    phase = JobPhase.STARTING if view.status.phase is JobPhase.PENDING else view.status.phase
    return changed(
        view.status,
        normal("RoundOpened", f"round {number}: {_starting(len(order) * view.spec.workers.ranksPerPod)}"),
        *allowed_sizes.report_resize(view, len(order)),
        phase=phase,
        round=number,
        **opened(view, store, order),
    )


def reopened(view: View, gone: tuple[int, ...] = ()) -> dict[str, object]:
    """Return the fields of the next round: it is open at once if enough slots are ready, else it forms.

    `gone`: slots whose pods are replaced by the same write. A spare that is ready takes such a place.
    """
    order = next_order(view, gone) if view.status.round else None
    store = offered_store(view, order, at_once=True, others=order != view.members) if order else None
    return forming(view) if order is None or store is None else opened(view, store, order)


def smaller(view: View, size: int, gone: tuple[int, ...]) -> dict[str, object]:
    """Return the fields of a round with `size` of the remaining pods. The size is decided even if the round cannot
    open yet."""
    able = [slot not in gone and ready(view, slot) for slot in range(view.slots)]
    order = _arranged(view, size, able)
    assert order is not None
    blocked = view.scripted and _may_still_write(view, able)
    store = None if blocked else offered_store(view, order, at_once=True, others=True)
    if store is not None:
        return opened(view, store, order)
    return {**forming(view), "roundMap": pack_ranges(order), "workers": allowed_sizes.sized(view, size)}


def opened(view: View, store: str, order: tuple[int, ...]) -> dict[str, object]:
    """Return the fields of a round that is open. Together with its number they are all that agents are told."""
    return {
        **on_store(view, store),
        "roundMap": pack_ranges(order),
        "roundPods": round_pod_identity.digest(pod.uid for slot in order if (pod := view.pods[slot]) is not None),
        "roundOpenedAt": rfc3339(view.now),
        "roundResume": resume(view),
        "stopAt": None,
        "stopBound": False,
        **script_step_count.at_the_end(view),
        "workers": allowed_sizes.sized(view, len(order)),
        "roundPeers": memory_peers.shift(view, order),
    }


def on_store(view: View, store: str) -> dict[str, object]:
    """Return the fields that set the store of a round and remember it as used."""
    used = [store, *(known for known in view.status.lastStore.split(",") if known and known != store)]
    return {"roundStore": store, "lastStore": ",".join(used[:USED_STORES])}


def forming(view: View) -> dict[str, object]:
    """Return the fields of a round whose members are not all ready: agents end their ranks and wait. The map stays,
    so that survivors keep their ranks."""
    return {
        "roundStore": "",
        "roundOpenedAt": rfc3339(view.now),
        "roundResume": "",
        "stopAt": None,
        "stopBound": False,
        **script_step_count.at_the_end(view),
    }


def resume(view: View) -> str:
    """Return what the ranks resume from: the value of the spec until this job has trained; after that its own newest
    checkpoint."""
    return "Auto" if view.highest_step() > 0 or view.status.checkpoint else view.spec.checkpoint.resume


def ready(view: View, slot: int) -> bool:
    """Return whether the slot's pod can take part in a new round."""
    pod, agent = view.pods[slot], view.agents[slot]
    if pod is None or agent is None or pod.deleting or pod.phase in ENDED:
        return False
    if not view.round_is_open and agent.round > 0 and not agent.parked:
        return False  # As long as the agent has not heard that its round is over, it may open another one by the grant.
    return agent.joined and not agent.draining and agent.silent_s < view.lost_after_s


def next_order(view: View, gone: tuple[int, ...] = ()) -> tuple[int, ...] | None:
    """Return the slots of the next round in rank order; None while too few are ready. `gone`: slots that no longer
    count."""
    able = [slot not in gone and ready(view, slot) for slot in range(view.slots)]
    if view.scripted and _may_still_write(view, able):
        return None
    forms_for_s = 0.0 if view.round_is_open else _formed_for_s(view)
    there = able.count(True)
    for size in allowed_sizes.openable(view, forms_for_s):
        # An elastic job may have as many sizes as pods, and each try below looks at all pods.
        order = _arranged(view, size, able) if size <= there else None
        if order is not None:
            return order
    return None


def _arranged(view: View, size: int, able: list[bool]) -> tuple[int, ...] | None:
    """Return `size` slots in rank order: from the slots that the job keeps or, if these are too few, from all. A
    member that is ready keeps its rank unless the size changes; then all ranks are new."""
    kept = allowed_sizes.slots_for(view, size)
    return _below(view, kept, size, able) or (_below(view, view.slots, size, able) if view.slots > kept else None)


def _below(view: View, limit: int, size: int, able: list[bool]) -> tuple[int, ...] | None:
    spares = [slot for slot in view.parked if slot < limit and able[slot]]
    stay = [slot < limit and able[slot] for slot in view.members]
    if size == len(view.members):
        if stay.count(False) > (0 if _waits_for_own_slots(view) else len(spares)):
            return None
        fill = iter(spares)
        return tuple(slot if stays else next(fill) for slot, stays in zip(view.members, stay, strict=True))
    found = sorted(slot for slot, stays in zip(view.members, stay, strict=True) if stays)[:size]
    found += spares[: size - len(found)]
    return tuple(sorted(found)) if len(found) == size else None


def _waits_for_own_slots(view: View) -> bool:
    return view.status.phase is JobPhase.PENDING and _formed_for_s(view) < OWN_SLOTS_WAIT_S


def _formed_for_s(view: View) -> float:
    """Return the seconds for which the round forms. After a scheduling gate they count from its removal, because the
    pods could not start before."""
    waited = since(view.status.roundOpenedAt or view.status.startTime, view.now)
    if scheduling_gates.hold(view):
        return waited  # The job may be allowed to start with the pods that no gate holds back.
    return min(waited, scheduling_gates.since_lifted_s(view.status, view.now))


def _may_still_write(view: View, able: list[bool]) -> bool:
    """Return whether a pod that is not in the next round may still run ranks of the last one. Only the end of these
    ranks protects a script's files."""
    if any(_lives(pod) for pod in view.others):
        return True
    for slot in view.members:
        pod, agent = view.pods[slot], view.agents[slot]
        never_ran = pod is not None and (pod.phase == "Pending" or (agent is not None and agent.round == 0))
        if not able[slot] and pod is not None and _lives(pod) and not never_ran:
            return True
    return False


def _lives(pod: PodRecord) -> bool:
    return pod.phase not in ENDED or pod.lingers


def offered_store(view: View, order: tuple[int, ...], *, at_once: bool = False, others: bool = False) -> str | None:
    """Return the store for a round as host:port, or None if there is none yet. The store in the pod of rank 0 is
    preferred. Scripts bind further ports on its address, so they wait for it; otherwise the store of another member is
    used. The agent must be in the round, because any other agent would not notice the end of its store.

    An agent's record may still offer a store that an earlier round used; such an offer is ignored. `others`: the new
    round has other members than the round that ends now. Until the agent of that round's rank 0 has heard of the new
    round, it may open the same number with the old members (see `leaderless_restart`) on the store that it keeps, so
    that store is not used.
    """
    kept = view.members[0] if others and view.members else None
    reached = max((agent.round for agent in view.agents if agent is not None), default=0)
    first = _fresh(view, view.agents[order[0]], reached) if order[0] != kept else None
    if first is not None:
        return first
    late = not at_once and _formed_for_s(view) >= STORE_WAIT_S
    if view.scripted and not late:
        return None
    rest = (view.agents[slot] for slot in order[1:] if slot != kept)
    second = next((store for agent in rest if (store := _fresh(view, agent, reached)) is not None), None)
    if second is not None or not late:
        return second
    # By now every record is newer than the last round, so the same port was chosen again by chance.
    agent = view.agents[order[0]]
    return address(agent.next_store) if agent is not None and agent.next_store is not None else None


def due_s(view: View) -> float | None:
    """Return the seconds until a forming round accepts what it does not accept now: another store, other slots, or a
    smaller size. Return None if there is nothing to wait for."""
    if view.round_is_open:
        return None
    waited = _formed_for_s(view)
    limits = [*allowed_sizes.waits_s(view)]
    if view.parked and view.status.phase is JobPhase.PENDING:
        limits.append(OWN_SLOTS_WAIT_S)
    if next_order(view) is not None:
        limits.append(STORE_WAIT_S)
    return min((limit - waited for limit in limits if limit > waited), default=None)


def _fresh(view: View, agent: AgentRecord | None, reached: int) -> str | None:
    """Return the store that an agent offers, unless a round has used it: a round of the status, or one that members
    opened by the grant and that this agent has not reported yet. `reached`: the highest round of any agent."""
    if agent is None or (0 < agent.round < reached and not agent.parked):
        return None
    offered = address(agent.next_store) if agent.next_store is not None else None
    return None if offered is None or offered in _used(view) else offered


def _used(view: View) -> Iterable[str]:
    return view.status.lastStore.split(",")


def address(store: StoreAddress) -> str:
    """Return the address of a store as host:port."""
    return f"{store.host}:{store.port}"


def _starting(ranks: int) -> str:
    return f"{counted(ranks, 'rank')} {'starts' if ranks == 1 else 'start'}"
