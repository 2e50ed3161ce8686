"""What an agent is told, from the written status alone: what is not written is not told."""

from __future__ import annotations

import hashlib

from trainmaster.contract.wire import Assignment, Directive, DirectiveState, StoreAddress, encode
from trainmaster_operator.api.status import JobPhase
from trainmaster_operator.planning.observation import JobSpec, JobStatus, Observation
from trainmaster_operator.planning.view import report_interval_s


def directive(spec: JobSpec, status: JobStatus, observed: Observation, slot: int) -> Directive:
    """The directive for the current pod of `slot`. O(1) in the world size, whatever the number of pods."""
    place, size = _place(status.roundMap, slot)
    state = _state(status, observed, place)
    running = state is DirectiveState.RUN
    keep = slot < 2 and slot < max(1, spec.workers.replicas) and state is not DirectiveState.FINISH
    content = Directive(
        epoch=0,
        state=state,
        round=status.round,
        tag="",
        assignment=_assignment(spec, status, place, size) if running and place is not None else None,
        stop_at=status.stopAt if running else None,
        stop_bound=status.stopBound and running,
        keep_store=keep,
        report_interval_s=report_interval_s(spec.workers.replicas),
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


def _assignment(spec: JobSpec, status: JobStatus, place: int, size: int) -> Assignment:
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
        resume=status.roundResume or "Auto",
        mesh=spec.training.parallelism.resolve(size * ranks) if spec.training else {},
        deadline_s=spec.recovery.hang.limitSeconds or 0.0,
    )


def _place(round_map: str, slot: int) -> tuple[int | None, int]:
    """(position of a slot in the map, slots in it), without unpacking the ranges."""
    place, size = None, 0
    for part in round_map.split(",") if round_map else []:
        first, dash, last = part.partition("-")
        low = int(first)
        high = int(last) if dash else low
        if low <= slot <= high:
            place = size + slot - low
        size += high - low + 1
    return place, size
