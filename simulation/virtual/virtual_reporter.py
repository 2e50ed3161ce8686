"""The messages of a simulated agent: a join that is always open, and reports at intervals and when there is news."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING

from trainmaster.agent.shell import self_fencing
from trainmaster.contract.wire import ExitCode, JoinRequest, Report
from trainmaster_operator.control.fleet import Refused

if TYPE_CHECKING:
    from simulation.virtual.virtual_agent import SimAgent

TERMINATED = 143

IDLE_S = 4.0  # below every limit on silence


class SimReporter:
    """What `agent` says to its operator. `news` is set when there is something to report at once."""

    def __init__(self, agent: SimAgent, chance: random.Random) -> None:
        self.news = asyncio.Event()
        self._agent = agent
        self._chance = chance
        self._token = token_of(agent.identity.pod_uid)
        self._sent_at: float | None = None  # the report that isn't answered yet
        self._failed: tuple[float, bool] | None = None  # the last one was not: when it was sent; it was refused
        self._dropping = False
        self._renewed_at = 0.0  # when the last request was sent that was answered
        self._talks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to join and to report; the agent of a script also ends when it has reached nobody for too long."""
        self._renewed_at = self._agent.world.clock.monotonic()
        if self._agent.world.workload.script:
            self._agent.world.spawn(self._keep_lease())
        self._talks = [self._agent.world.spawn(self._join()), self._agent.world.spawn(self._report())]

    def close(self) -> None:
        """Break the connections."""
        for talk in self._talks:
            if talk is not asyncio.current_task():
                talk.cancel()

    def drop(self) -> None:
        """Drop the report that is under way: what it says is no longer so."""
        if self._sent_at is not None and self._talks[-1] is not asyncio.current_task():
            self._dropping = True
            self._talks[-1].cancel()

    def unanswered(self, since: float, silence_s: float) -> bool:
        """No leader has answered what was asked since then: nobody was reached, or nobody spoke for so long."""
        now = self._agent.world.clock.monotonic()
        if self._failed is not None and self._failed[0] >= since:
            return not self._failed[1] or now - since >= silence_s
        return self._sent_at is not None and now - max(self._sent_at, since) >= silence_s

    async def _keep_lease(self) -> None:
        """Look as `trainmaster.agent.shell.self_fencing` does, with its numbers."""
        agent = self._agent
        while agent.alive:
            await asyncio.sleep(self_fencing.LOOK_S)
            if (asked_at := agent.world.clock.monotonic()) - self._renewed_at < self_fencing.LEASE_S:
                continue
            if agent.world.reaches_api(agent):
                self._renewed_at = asked_at
                continue
            await asyncio.sleep(self_fencing.CONNECT_S)
            agent.die(ExitCode.FENCED, "neither an operator nor the API server was reached")

    async def _join(self) -> None:
        while self._agent.alive:
            if not await self._exchange(self._agent.build_join()):
                await asyncio.sleep(self._chance.uniform(0.05, 0.5))

    async def _report(self) -> None:
        while self._agent.alive:
            self.news.clear()
            report = self._agent.build_report()
            self._sent_at = sent_at = self._agent.world.clock.monotonic()
            try:
                answered = await self._exchange(report)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._dropping or task is None or task.uncancel():
                    raise
                self._dropping, self._sent_at = False, None
                continue
            self._sent_at = None
            if not answered:
                self._failed = (sent_at, answered is False)
                await self._until_news(self._chance.uniform(0.05, 0.5))
            elif self._agent.directive is not None:
                self._failed = (sent_at, True) if self._agent.directive.unable else None
            told_saved = report.saved and bool(answered)
            if self._agent.drains and self._agent.alive and (told_saved or answered is None):
                self._agent.die(ExitCode.SAVED if told_saved else TERMINATED, told=True)
                return
            # Jobs wait for hours where nodes come late: agents that have nothing to tell speak less often there.
            idle = self._agent.world.cluster is not None and not any(rank.alive for rank in self._agent.ranks)
            await self._until_news(IDLE_S if idle else self._agent.interval_s)

    async def _until_news(self, seconds: float) -> None:
        """Or for so long."""
        timer = asyncio.get_running_loop().call_later(seconds, self.news.set)
        await self.news.wait()
        timer.cancel()

    async def _exchange(self, message: JoinRequest | Report) -> bool | None:
        """Whether the operator has taken it; None: nobody answered."""
        sent_at = self._agent.world.clock.monotonic()
        try:
            directive = await self._agent.world.send(self._agent, self._token, message)
        except Refused as refused:
            self._renewed_at = max(self._renewed_at, sent_at)
            if refused.status == 410:
                self._agent.die(ExitCode.FENCED, "it is stale", told=True)
            return False
        except ConnectionError:
            return None
        self._renewed_at = max(self._renewed_at, sent_at)
        if self._agent.alive:
            self._agent.obey(directive)
        return True


def token_of(pod_uid: str) -> str:
    """Return the token with which the agent of a pod proves who it is."""
    return f"token of {pod_uid}"


def token_hash(pod_uid: str) -> str:
    """Return the SHA-256 of the token of a pod, in hexadecimal digits, as the operator is told it."""
    return hashlib.sha256(token_of(pod_uid).encode()).hexdigest()
