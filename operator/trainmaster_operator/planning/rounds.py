"""When a round opens, and on which store."""

from __future__ import annotations

from trainmaster.contract.wire import StoreAddress
from trainmaster_operator.api.meta import pack_ranges
from trainmaster_operator.api.status import JobPhase
from trainmaster_operator.planning.change import Change, changed, normal
from trainmaster_operator.planning.observation import AgentRecord
from trainmaster_operator.planning.times import rfc3339, since
from trainmaster_operator.planning.view import ENDED, View

STORE_WAIT_S = 10.0
"""How long a round waits for the store beside rank 0 before it takes the other one, or one that looks used."""


def open_round(view: View) -> Change | None:
    """Opens the first round, or the one that forms, once every slot's pod has an agent and a store is offered."""
    if view.round_is_open or not all(ready(view, slot) for slot in range(view.slots)):
        return None
    store = offered_store(view)
    if store is None:
        return None
    number = max(1, view.status.round)
    phase = JobPhase.STARTING if view.status.phase is JobPhase.PENDING else view.status.phase
    return changed(
        view.status,
        normal("RoundOpened", f"round {number}: {view.slots * view.spec.workers.ranksPerPod} ranks start"),
        phase=phase,
        round=number,
        **opened(view, store),
    )


def opened(view: View, store: str) -> dict[str, object]:
    """The fields of a round that is open: beside its number they are all that agents are told."""
    return {
        "roundMap": pack_ranges(range(view.slots)),
        "roundStore": store,
        "lastStore": store,
        "roundOpenedAt": rfc3339(view.now),
        "roundResume": resume(view),
        "stopAt": None,
        "stopBound": False,
    }


def forming(view: View) -> dict[str, object]:
    """The fields of a round whose members aren't all there: agents end their ranks and wait."""
    return {
        "roundMap": "",
        "roundStore": "",
        "roundOpenedAt": rfc3339(view.now),
        "roundResume": "",
        "stopAt": None,
        "stopBound": False,
    }


def resume(view: View) -> str:
    """As the spec says until this job has trained; from then on its own newest checkpoint, whatever the spec says."""
    return "Auto" if view.highest_step() > 0 or view.status.checkpoint else view.spec.checkpoint.resume


def ready(view: View, slot: int) -> bool:
    """The slot's pod can take part in a new round."""
    pod, agent = view.pods[slot], view.agents[slot]
    if pod is None or agent is None or pod.deleting or pod.phase in ENDED:
        return False
    return agent.joined and not agent.draining and agent.silent_s < view.lost_after_s


def next_store(view: View) -> str | None:
    """The store beside rank 0, since scripts bind further ports on its address.

    An agent's record may still hold the store that the last round took: such an offer is not one.
    """
    return _fresh(view, view.agents[0])


def offered_store(view: View) -> str | None:
    """The store for a round that forms: the one beside rank 0; in the end the next slot's."""
    first = next_store(view)
    if first is not None:
        return first
    if since(view.status.roundOpenedAt or view.status.startTime, view.now) < STORE_WAIT_S:
        return None
    second = _fresh(view, view.agents[1]) if view.slots > 1 else None
    if second is not None:
        return second
    # By now every record is newer than the last round: the port came back by chance.
    return _address(view.agents[0].next_store) if view.agents[0] is not None else None


def store_due_s(view: View) -> float | None:
    """When a round that forms takes another store, if all else is ready."""
    if view.round_is_open or not all(ready(view, slot) for slot in range(view.slots)):
        return None
    wait = STORE_WAIT_S - since(view.status.roundOpenedAt or view.status.startTime, view.now)
    return wait if wait > 0 else None


def _fresh(view: View, agent: AgentRecord | None) -> str | None:
    address = _address(agent.next_store) if agent is not None else None
    return None if address == view.status.lastStore else address


def _address(store: StoreAddress | None) -> str | None:
    return None if store is None else f"{store.host}:{store.port}"
