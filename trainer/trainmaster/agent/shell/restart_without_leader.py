"""Restarts ranks while no leader answers, as often as the last leader has granted.

When a rank dies and its agent's operator is silent, the agent tells the agent of rank 0's pod. If no leader answers
that agent either, it opens the next round on the store that it keeps open, and informs the ring. The round number
increases by one, so storage refuses the older round as usual. A round that a leader publishes takes precedence over a
round that was opened in this way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from trainmaster.agent.shell.datagrams import Datagrams
from trainmaster.agent.shell.peer_heartbeat import Ring
from trainmaster.contract.wire import Assignment, Cause, Granted, Neighbour, StoreAddress, Verdict, leaderless_rules

if TYPE_CHECKING:
    from trainmaster.agent.shell.supervisor import Supervisor

FAILED, OPEN, OPENED = "failed", "open", "opened"
_SHOWN = 300  # characters of a failure's message; JSON needs at most two bytes for each that can be printed


class Grant:
    def __init__(self, supervisor: Supervisor, datagrams: Datagrams, ring: Ring) -> None:
        self._supervisor = supervisor
        self._datagrams = datagrams
        self._ring = ring
        self._opened: list[tuple[Granted, float]] = []  # that no leader has taken over yet, and when
        self._assignment: Assignment | None = None
        self._failed_at: float | None = None  # of a rank here, in this round
        self._asked_at: float | None = None  # when the first word of a failure in this round came here
        self._telling: asyncio.TimerHandle | None = None
        self._passing: asyncio.TimerHandle | None = None
        self._passed: set[int] = set()  # rounds that the next agent knows of

    def begin(self, assignment: Assignment) -> None:
        """Note that a round begins here, published by a leader or granted."""
        self._assignment = assignment
        self._failed_at = self._asked_at = None
        if not assignment.minor:
            self._opened = []
            self._datagrams.secret = assignment.peer_secret
            self._ring.begin(assignment.ring)

    def foresaw(self, published: Assignment) -> bool:
        """Return True if a leader wants the round that already runs here, except for the store.

        Then the leader has taken the round over, or it decided at the same time as we did.
        """
        return published.minor > 0 or leaderless_rules.same_work(self._assignment, published)

    def confirm(self, assignment: Assignment) -> None:
        """Note that a leader has published the round that already runs here."""
        if self._assignment is None or assignment.minor < self._assignment.minor:
            return  # it doesn't know of our store yet
        self._assignment = dataclasses.replace(
            self._assignment, grant=assignment.grant, first=assignment.first or self._assignment.first
        )
        self._opened = [(granted, at) for granted, at in self._opened if granted.round > assignment.round]
        if self._ring.next is None:
            self._ring.begin(assignment.ring)

    def list_granted(self) -> list[Granted]:
        """Return the rounds that this agent opened and no leader has taken over yet, with their ages as of now."""
        now = time.monotonic()
        return [dataclasses.replace(granted, age_s=now - at) for granted, at in self._opened]

    def close(self) -> None:
        for timer in (self._telling, self._passing):
            if timer is not None:
                timer.cancel()

    def look(self) -> None:
        """Check whether a rank here failed in a way that a restart answers, and tell the agent of rank 0's pod."""
        if self._failed_at is None and self._wanted() is not None:
            self._failed_at = time.monotonic()
            self._tell()

    def heard(self, kind: str, message: dict[str, Any], sender: StoreAddress) -> None:
        if kind == FAILED:
            self._asked(message)
        elif kind == OPEN:
            self._join_granted_round(message, sender)
        elif kind == OPENED:
            self._passed.add(message["round"])

    def _wanted(self) -> Verdict | None:
        """Return the verdict because of which a round should be opened, or None."""
        a, round = self._assignment, self._supervisor.round
        if a is None or round is None or a.round != round.number or a.minor >= a.grant or self._stops():
            return None
        return round.verdict if leaderless_rules.answered_by_restart(round.verdict) else None

    def _stops(self) -> bool:
        """Return True if a leader has begun something else, or this pod is about to end."""
        s, a = self._supervisor, self._assignment
        return a is None or s.draining_until is not None or not leaderless_rules.goes_on(a, s.directive)

    def _tell(self) -> None:
        """Repeat the request until a round opens. While the operator answers, nothing is requested."""
        verdict, a = self._wanted(), self._assignment
        if verdict is None or a is None or self._failed_at is None:
            return
        self._telling = asyncio.get_running_loop().call_later(leaderless_rules.AGAIN_S, self._tell)
        silent = self._supervisor.reporter.unanswered(self._failed_at, leaderless_rules.SILENCE_S)
        if not silent:
            self._supervisor.reporter.at_once()  # an answer may tell that its sender can do nothing
        # Told while the operator may still answer, so that both of us wait for it at the same time.
        age_s = time.monotonic() - self._failed_at
        message = {"kind": FAILED, "round": a.round, "silent": silent, "verdict": _brief(verdict, age_s)}
        if a.group_rank == 0:
            self._asked(message)
        elif a.first is not None:
            self._datagrams.send(a.first.address, message)

    def _asked(self, message: dict[str, Any]) -> None:
        """Handle a request, on the agent of rank 0's pod. It is repeated; each time is a chance to act."""
        a, s = self._assignment, self._supervisor
        if a is None or a.group_rank != 0 or message["round"] != a.round or self._stops():
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        if not message["silent"]:
            s.reporter.at_once()
            return
        store = s.stores.next_address
        if a.minor >= a.grant or store is None or not s.reporter.unanswered(self._asked_at, leaderless_rules.SILENCE_S):
            return
        verdict = message["verdict"]
        granted = Granted(a.round + 1, store, Verdict(**{**verdict, "cause": Cause(verdict["cause"])}))
        self._opened.append((granted, time.monotonic()))
        self._begin(a, store)

    def _join_granted_round(self, message: dict[str, Any], sender: StoreAddress) -> None:
        """Begin the round that the agent before this one in the ring says is open, and acknowledge it."""
        a = self._assignment
        if a is None:
            return
        if message["round"] == a.round + 1 and message["minor"] == a.minor + 1 and not self._stops():
            self._begin(a, StoreAddress(*message["store"]))
            a = dataclasses.replace(a, round=a.round + 1)
        if message["round"] <= a.round:
            self._datagrams.send(sender, {"kind": OPENED, "round": message["round"]})

    def _begin(self, a: Assignment, store: StoreAddress) -> None:
        following = leaderless_rules.following(a, store)
        if a.group_rank < a.group_world_size - 1 and self._ring.next is not None:
            self._pass_on(self._ring.next, following, leaderless_rules.TRIES)
        self._supervisor.begin_granted(following)

    def _pass_on(self, to: Neighbour, a: Assignment, tries: int) -> None:
        if a.round in self._passed or not tries or self._assignment is None or self._assignment.round > a.round:
            return
        message = {"kind": OPEN, "round": a.round, "minor": a.minor, "store": [a.store.host, a.store.port]}
        self._datagrams.send(to.address, message)
        loop = asyncio.get_running_loop()
        self._passing = loop.call_later(leaderless_rules.AGAIN_S, self._pass_on, to, a, tries - 1)


def _brief(verdict: Verdict, age_s: float) -> dict[str, Any]:
    """Return a verdict that fits into a datagram."""
    return {
        "rank": verdict.rank,
        "cause": verdict.cause.value,
        "round": verdict.round,
        "message": "".join(c if c.isascii() and c.isprintable() else "?" for c in verdict.message[:_SHOWN]),
        "exit_code": verdict.exit_code,
        "signal": verdict.signal,
        "step": verdict.step,
        "age_s": age_s,
    }
