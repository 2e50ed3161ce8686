"""The grant, as agents use it: they restart ranks by themselves while no leader answers, as often as the last one said.

The rules are those of `trainmaster.agent.shell.restart_without_leader`, and the same code; words between agents may
be late, and are lost now and then.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from trainmaster.contract.wire import Assignment, Granted, StoreAddress, Verdict, leaderless_rules

if TYPE_CHECKING:
    from simulation.virtual.virtual_agent import SimAgent


class Failed(NamedTuple):
    """To the agent beside rank 0."""

    round: int
    silent: bool
    verdict: Verdict


class Open(NamedTuple):
    """To the next agent of the round."""

    round: int
    minor: int
    store: StoreAddress
    sender: StoreAddress


class Opened(NamedTuple):
    """The answer."""

    round: int


Word = Failed | Open | Opened


class SimGrant:
    def __init__(self, agent: SimAgent) -> None:
        self._agent = agent
        self._opened: list[tuple[Granted, float]] = []  # that no leader has taken over yet, and when
        self._assignment: Assignment | None = None
        self._failed_at: float | None = None  # of a rank here, in this round
        self._asked_at: float | None = None  # when the first word of a failure in this round came here
        self._passed: set[int] = set()  # rounds that the next agent knows of

    @property
    def minor(self) -> int:
        return self._assignment.minor if self._assignment is not None else 0

    def begin(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._failed_at = self._asked_at = None
        if not assignment.minor:
            self._opened = []

    def foresaw(self, published: Assignment) -> bool:
        """Whether a leader wants what runs here already, but for the store."""
        return published.minor > 0 or leaderless_rules.same_work(self._assignment, published)

    def confirm(self, assignment: Assignment) -> None:
        """A leader has published what runs here already."""
        if self._assignment is None or assignment.minor < self._assignment.minor:
            return
        self._assignment = dataclasses.replace(
            self._assignment,
            grant=assignment.grant,
            first=assignment.first or self._assignment.first,
            ring=self._assignment.ring or assignment.ring,
        )
        self._opened = [(granted, at) for granted, at in self._opened if granted.round > assignment.round]

    def list_granted(self) -> list[Granted]:
        """Return the rounds that this agent opened and no leader has taken over yet, with their ages as of now."""
        now = self._agent.world.clock.monotonic()
        return [dataclasses.replace(granted, age_s=now - at) for granted, at in self._opened]

    def look(self) -> None:
        """Something happened to a rank here."""
        if self._failed_at is None and self._wanted() is not None:
            self._failed_at = self._agent.world.clock.monotonic()
            self._tell()

    def heard(self, word: Word) -> None:
        if isinstance(word, Failed):
            self._asked(word)
        elif isinstance(word, Open):
            self._join_granted_round(word)
        else:
            self._passed.add(word.round)

    def _wanted(self) -> Verdict | None:
        a, verdict = self._assignment, self._agent.verdict
        if a is None or a.round != self._agent.round or a.minor >= a.grant or self._stops():
            return None
        return verdict if leaderless_rules.answered_by_restart(verdict) else None

    def _stops(self) -> bool:
        """A leader has begun something else, or this pod is to end."""
        a, agent = self._assignment, self._agent
        return a is None or agent.drains or not agent.alive or not leaderless_rules.goes_on(a, agent.directive)

    def _tell(self) -> None:
        verdict, a = self._wanted(), self._assignment
        if verdict is None or a is None or self._failed_at is None:
            return
        world = self._agent.world
        world.later(leaderless_rules.AGAIN_S, self._tell)
        silent = self._agent.unanswered(self._failed_at, leaderless_rules.SILENCE_S)
        if not silent:
            self._agent.report_at_once()
        age_s = world.clock.monotonic() - self._failed_at
        word = Failed(a.round, silent, dataclasses.replace(verdict, age_s=age_s))
        if a.group_rank == 0:
            self._asked(word)
        elif a.first is not None:
            world.say(a.first.address, word)

    def _asked(self, word: Failed) -> None:
        """At the agent beside rank 0."""
        a, agent = self._assignment, self._agent
        if a is None or a.group_rank != 0 or word.round != a.round or self._stops():
            return
        now = agent.world.clock.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        if not word.silent:
            agent.report_at_once()
            return
        store = agent.offered
        if a.minor >= a.grant or store is None or not agent.unanswered(self._asked_at, leaderless_rules.SILENCE_S):
            return
        self._opened.append((Granted(a.round + 1, store, word.verdict), now))
        self._begin(a, store)

    def _join_granted_round(self, word: Open) -> None:
        """Begin the round that the agent before this one in the ring says is open, and acknowledge it."""
        a = self._assignment
        if a is None:
            return
        reached = a.round
        if word.round == a.round + 1 and word.minor == a.minor + 1 and not self._stops():
            self._begin(a, word.store)
            reached += 1
        if word.round <= reached:
            self._agent.world.say(word.sender, Opened(word.round))

    def _begin(self, a: Assignment, store: StoreAddress) -> None:
        following = leaderless_rules.following(a, store)
        if a.group_rank < a.group_world_size - 1 and a.ring is not None and a.ring.address is not None:
            self._pass_on(a.ring.address, following, leaderless_rules.TRIES)
        self._agent.begin_granted(following)

    def _pass_on(self, to: StoreAddress, a: Assignment, tries: int) -> None:
        overtaken = self._assignment is None or self._assignment.round > a.round
        if a.round in self._passed or not tries or overtaken or not self._agent.alive:
            return
        world = self._agent.world
        world.say(to, Open(a.round, a.minor, a.store, self._agent.address))
        world.later(leaderless_rules.AGAIN_S, lambda: self._pass_on(to, a, tries - 1))
