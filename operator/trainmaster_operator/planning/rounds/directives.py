"""What agents are told. It is made only from the written status: agents are never told what is not written."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from trainmaster.contract.wire import Assignment, Directive, DirectiveState, Neighbour, StoreAddress, altered, encode
from trainmaster_operator.planning.facts.computed_once import attribute
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import JobSpec, JobState, Observation
from trainmaster_operator.planning.facts.view import report_interval_s
from trainmaster_operator.planning.liveness import hang
from trainmaster_operator.planning.rounds import leaderless_restart


class _Common(NamedTuple):
    """The part of a directive that is the same for several agents, with its digest."""

    directive: Directive
    digest: bytes


class Directives:
    """The directives of one job. The common part is made once, so each further agent costs O(1) in the world size
    and a few microseconds: a new round of thousands of agents starts without delay."""

    def __init__(self, spec: JobSpec, status: JobState, observed: Observation) -> None:
        self._away, self._agents = status.roundPeers, observed.agents
        self._places = _Places(status.roundMap)
        state = _state(status, observed, placed=True)
        runs = state is DirectiveState.RUN
        assigned = _assignment(spec, status, self._places.size, self._neighbour(0)) if runs else None
        self._common = partial(_common, spec, status, observed.epoch)
        self._placed = self._common(state, assigned)
        self._keepers = () if state is DirectiveState.FINISH else _keepers(status)
        self._parked_state = _state(status, observed, placed=False)

    @attribute
    def _placeless(self) -> _Common:
        """The common part for slots without a rank; most jobs have no such slots."""
        return self._common(self._parked_state, None)

    def of(self, slot: int) -> Directive:
        """Return the directive for the current pod of `slot`."""
        place = self._places.of(slot)
        common, digest = self._placeless if place is None else self._placed
        keep = slot in self._keepers
        assignment, own = common.assignment, ""
        if place is not None and assignment is not None:
            # The members are in the status. Their addresses are not: each agent reports its own to each new leader.
            # Until then, the agents of the round use the addresses that they know.
            peer = self._neighbour((place + self._away) % self._places.size) if self._away else None
            ring = self._neighbour((place + 1) % self._places.size) if self._places.size > 1 else None
            own = f"{place} {_where(peer)} {_where(ring)}"
            assignment = altered(
                assignment,
                first_rank=place * assignment.ranks,
                group_rank=place,
                peers=[peer.address] if peer else [],
                ring=ring,
            )
        # The epoch is not part of the tag: a new leader alone is no news for an agent.
        tag = hashlib.sha256(digest + f"{keep} {own}".encode()).hexdigest()[:12]
        return altered(common, tag=tag, keep_store=keep, assignment=assignment)

    def _neighbour(self, place: int) -> Neighbour | None:
        """Return the agent at a place of the round; None until this leader has heard its address."""
        slot = self._places.slot(place)
        agent = self._agents.get(slot)
        return Neighbour(slot, agent.peer) if agent is not None and agent.peer is not None else None


def directives(spec: JobSpec, status: JobState, observed: Observation) -> Callable[[int], Directive]:
    """Return a function that gives the directive for the current pod of a slot."""
    return Directives(spec, status, observed).of


def directive(spec: JobSpec, status: JobState, observed: Observation, slot: int) -> Directive:
    """Return the directive for the current pod of one slot."""
    return directives(spec, status, observed)(slot)


def _where(agent: Neighbour | None) -> str:
    return f"{agent.slot} {agent.address.host}:{agent.address.port}" if agent else "-"


def _common(spec: JobSpec, status: JobState, epoch: int, state: DirectiveState, assigned: Assignment | None) -> _Common:
    running = state is DirectiveState.RUN
    content = Directive(
        epoch=0,
        state=state,
        round=status.round,
        tag="",
        assignment=assigned,
        stop_at=status.stopAt if running else None,
        stop_bound=status.stopBound and running,
        report_interval_s=report_interval_s(spec.workers.replicas + spec.workers.spares),
        ask_stacks=running and hang.asks_stacks(status),
    )
    return _Common(altered(content, epoch=epoch), hashlib.sha256(encode(content)).digest())


def _state(status: JobState, observed: Observation, placed: bool) -> DirectiveState:
    if status.phase.finished or observed.deleting:
        return DirectiveState.FINISH
    if status.round == 0:
        return DirectiveState.WAIT
    # The ranks of a suspended job have saved, or the grace period of their pods runs: no rank is started, and none is
    # killed early.
    if status.phase is JobPhase.SUSPENDED or not status.roundStore or not placed:
        return DirectiveState.HOLD
    return DirectiveState.RUN


def _assignment(spec: JobSpec, status: JobState, size: int, first: Neighbour | None) -> Assignment:
    """Return the assignment without the fields that differ between places."""
    ranks = spec.workers.ranksPerPod
    host, _, port = status.roundStore.rpartition(":")
    return Assignment(
        round=status.round,
        world_size=size * ranks,
        first_rank=0,
        ranks=ranks,
        group_rank=0,
        group_world_size=size,
        store=StoreAddress(host, int(port)),
        restart_count=status.round - 1,
        minor=status.roundMinor,
        grant=leaderless_restart.highest(spec, status),
        resume=status.roundResume or "Auto",
        mesh=spec.training.parallelism.resolve(size * ranks) if spec.training else {},
        deadline_s=hang.start_limit_s(spec),
        micro_divisor=status.microDivisor,
        skipped=status.skipped,
        first=first,
    )


class _Places:
    """The slots of a round in the order of their places. The ranges are not unpacked."""

    def __init__(self, round_map: str) -> None:
        self.runs = list(_runs(round_map))
        self._first: list[int] = []  # The place of the first slot of each range.
        self.size = 0
        for low, high in self.runs:
            self._first.append(self.size)
            self.size += high - low + 1

    def of(self, slot: int) -> int | None:
        """Return the place of a slot, or None if the slot is not in the round."""
        for (low, high), first in zip(self.runs, self._first, strict=True):
            if low <= slot <= high:
                return first + slot - low
        return None

    def slot(self, place: int) -> int:
        """Return the slot at a place; -1 if there is no such place."""
        if not 0 <= place < self.size:
            return -1
        run = bisect_right(self._first, place) - 1
        return self.runs[run][0] + place - self._first[run]


def _keepers(status: JobState) -> tuple[int, ...]:
    """Return the slots whose agents keep a store open: those of the first two places, and the first slot without a
    rank, because it may get rank 0 next."""
    runs = list(_runs(status.roundMap)) or [(0, max(0, status.workers.replicas - 1))]
    (low, high), rest = runs[0], runs[1:]
    second = low + 1 if high > low else rest[0][0] if rest else low
    parked = 0
    for first, last in sorted(runs):
        if first > parked:
            break
        parked = last + 1
    return (low, second, parked)


def _runs(round_map: str) -> Iterator[tuple[int, int]]:
    for part in round_map.split(",") if round_map else []:
        first, dash, last = part.partition("-")
        yield int(first), int(last if dash else first)
