"""What an agent is told, from the written status alone: what is not written is not told."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from trainmaster.contract.wire import Assignment, Directive, DirectiveState, Neighbour, StoreAddress, encode
from trainmaster_operator.api.recovery import HangMode
from trainmaster_operator.api.status import JobPhase
from trainmaster_operator.planning import grant, hang
from trainmaster_operator.planning.observation import JobSpec, JobStatus, Observation
from trainmaster_operator.planning.view import report_interval_s


def directive(spec: JobSpec, status: JobStatus, observed: Observation, slot: int) -> Directive:
    """The directive for the current pod of `slot`. O(1) in the world size, whatever the number of pods."""
    place, size = _place(status.roundMap, slot)
    state = _state(status, observed, place)
    running = state is DirectiveState.RUN
    keep = state is not DirectiveState.FINISH and _keeps_store(status, slot)
    assignment = _rehearsal(spec, status, state)
    if running and place is not None:
        assignment = _assignment(spec, status, observed, place, size)
    content = Directive(
        epoch=0,
        state=state,
        round=status.round,
        tag="",
        assignment=assignment,
        stop_at=status.stopAt if running else None,
        stop_bound=status.stopBound and running,
        keep_store=keep,
        report_interval_s=report_interval_s(spec.workers.replicas + spec.workers.spares),
        ask_stacks=running and hang.asks_stacks(status),
    )
    # The epoch stays out of the tag: a new leader alone is no news to an agent.
    tag = hashlib.sha256(encode(content)).hexdigest()[:12]
    return Directive(**{**content.__dict__, "tag": tag, "epoch": observed.epoch})


def _state(status: JobStatus, observed: Observation, place: int | None) -> DirectiveState:
    if status.phase.finished or observed.deleting:
        return DirectiveState.FINISH
    if status.round == 0:
        return DirectiveState.WAIT
    # A suspended job's ranks have saved, or their pods' grace period runs: nobody starts, nobody is killed early.
    if status.phase is JobPhase.SUSPENDED or not status.roundStore or place is None:
        return DirectiveState.HOLD
    return DirectiveState.RUN


def _rehearsal(spec: JobSpec, status: JobStatus, state: DirectiveState) -> Assignment | None:
    """For a pod that is parked while others train. A script is spared it: what it does, it does for good."""
    trains = status.phase is JobPhase.RUNNING and status.roundStore != ""
    if state is not DirectiveState.HOLD or not trains or spec.training is None or not spec.recovery.zygote:
        return None
    nowhere = StoreAddress("127.0.0.1", 0)
    return Assignment(status.round, 1, 0, 1, 0, 1, nowhere, 0, resume="Never", rehearse=True)


def _assignment(spec: JobSpec, status: JobStatus, observed: Observation, place: int, size: int) -> Assignment:
    ranks = spec.workers.ranksPerPod
    host, _, port = status.roundStore.rpartition(":")
    return Assignment(
        round=status.round,
        world_size=size * ranks,
        first_rank=place * ranks,
        ranks=ranks,
        group_rank=place,
        group_world_size=size,
        store=StoreAddress(host, int(port)),
        restart_count=status.round - 1,
        minor=status.roundMinor,
        grant=grant.highest(spec, status),
        resume=status.roundResume or "Auto",
        mesh=spec.training.parallelism.resolve(size * ranks) if spec.training else {},
        peers=_peers(status, observed, place, size),
        deadline_s=(spec.recovery.hang.limitSeconds or 0.0) if spec.recovery.hang.mode is HangMode.ENFORCE else 0.0,
        micro_divisor=status.microDivisor,
        skipped=status.skipped,
        ring=_neighbour(status, observed, (place + 1) % size) if size > 1 else None,
        first=_neighbour(status, observed, 0),
    )


def _neighbour(status: JobStatus, observed: Observation, place: int) -> Neighbour | None:
    """The agent at a place of the round; None until this leader has heard where it listens. As with peers, agents go
    on with what they know."""
    slot = _slot(status.roundMap, place)
    agent = observed.agents.get(slot)
    return Neighbour(slot, agent.peer) if agent is not None and agent.peer is not None else None


def _peers(status: JobStatus, observed: Observation, place: int, size: int) -> list[StoreAddress]:
    """Where this place's copies go. Who that is stands in the status; where it listens, its agent tells each leader
    anew, and until it has, the round's agents go on with what they know."""
    if not status.roundPeers:
        return []
    agent = observed.agents.get(_slot(status.roundMap, (place + status.roundPeers) % size))
    return [agent.peer] if agent is not None and agent.peer is not None else []


def _slot(round_map: str, place: int) -> int:
    """The slot at a position in the map."""
    for low, high in _runs(round_map):
        if place <= high - low:
            return low + place
        place -= high - low + 1
    return -1


def _keeps_store(status: JobStatus, slot: int) -> bool:
    """The slots of the first two places do, and the first slot without one, since it may be the next to have rank 0."""
    runs = list(_runs(status.roundMap)) or [(0, max(0, status.workers.replicas - 1))]
    (low, high), rest = runs[0], runs[1:]
    second = low + 1 if high > low else rest[0][0] if rest else None
    parked = 0
    for first, last in sorted(runs):
        if first > parked:
            break
        parked = last + 1
    return slot in (low, second, parked)


def _place(round_map: str, slot: int) -> tuple[int | None, int]:
    """(position of a slot in the map, slots in it), without unpacking the ranges."""
    place, size = None, 0
    for low, high in _runs(round_map):
        if low <= slot <= high:
            place = size + slot - low
        size += high - low + 1
    return place, size


def _runs(round_map: str) -> Iterator[tuple[int, int]]:
    for part in round_map.split(",") if round_map else []:
        first, dash, last = part.partition("-")
        yield int(first), int(last if dash else first)
