"""The simulated agents of fleet.py, all in one process: real messages over real TLS, two connections each.

    python -m benchmarks.fleet_agents WORLD.json

What an agent does is kept cheap: it must not be what is measured. Commands come as lines of JSON on standard input;
each is answered by one line with the seconds that it took each agent.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import ssl
import sys
import time
from asyncio import sslproto
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fleet_agent import Agent
from trainmaster.contract.wire import Identity


class Agents:
    """All of them, and how long each took to what is being waited for."""

    def __init__(self, world: dict[str, Any]) -> None:
        self.name: str = world["name"]
        self._settle_s: float = world["settle_s"]
        self.replicas = [(host, port) for host, port in world["replicas"]]
        self.tls = ssl.create_default_context(cadata=world["bundle"])
        self.all = [Agent(self, Identity(**one["identity"]), one["token"]) for one in world["agents"]]
        self._is_there: Callable[[Agent], bool] = lambda agent: False
        self._since = 0.0
        self._took: dict[Agent, float] = {}
        self._wanted = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._complete = asyncio.Event()

    def heard(self, agent: Agent) -> None:
        if agent not in self._took and self._is_there(agent):
            self._took[agent] = time.monotonic() - self._since
            if len(self._took) == self._wanted:
                self._complete.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            await getattr(self, f"_{command.pop('do')}")(**command)
            sys.stdout.write(json.dumps(sorted(self._took.values())) + "\n")
            sys.stdout.flush()

    async def _start(self) -> None:
        """All join for the first time, at once."""
        self._wait_for(self.all, lambda agent: agent.directive is not None)
        for agent in self.all:
            self._tasks += [asyncio.create_task(agent.keep_joined()), asyncio.create_task(agent.keep_reporting())]
        await self._complete.wait()

    async def _settle(self) -> None:
        """Until all train, the operator knows it, and what they told on the way has been taken in."""
        self._wait_for(self.all, lambda agent: agent.trains)
        for agent in self.all:
            self.heard(agent)
        await self._complete.wait()
        await asyncio.sleep(self._settle_s)

    async def _die(self, job: str, slot: int, behind: bool) -> None:
        """A rank dies, and perhaps all the others behind it; until every agent begins the next round."""
        members = self._of(job)
        dying = members[slot]
        over = dying.round
        self._wait_for(members, lambda agent: agent.round > over)
        dying.fail()
        if behind:
            for agent in members:
                if agent is not dying:
                    agent.follow()
        await self._complete.wait()

    async def _drop(self) -> None:
        """Every connection breaks; until every join is answered over a new one."""
        began = time.monotonic()
        self._wait_for(self.all, lambda agent: agent.joining.served and agent.joining.opened_at > began)
        for agent in self.all:
            agent.lose_connections()
        await self._complete.wait()

    async def _follow(self) -> None:
        """The leader goes; until every agent has heard another."""
        epoch = max(agent.directive.epoch for agent in self.all if agent.directive)
        self._wait_for(self.all, lambda agent: agent.directive is not None and agent.directive.epoch > epoch)
        await self._complete.wait()

    def _wait_for(self, agents: list[Agent], is_there: Callable[[Agent], bool]) -> None:
        members = set(agents)
        self._is_there = lambda agent: agent in members and is_there(agent)
        self._took, self._wanted, self._since = {}, len(agents), time.monotonic()
        self._complete.clear()

    def _of(self, job: str) -> list[Agent]:
        return [agent for agent in self.all if agent.identity.job == job]


def main() -> None:
    world = json.loads(Path(sys.argv[1]).read_text())
    sslproto.SSLProtocol.max_size = 16 * 1024  # else 256 KiB for each connection
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    random.seed(1)

    async def run() -> None:
        agents = Agents(world)
        gc.freeze()
        gc.set_threshold(100_000, 50, 1000)  # thousands of agents must not stand still together
        await agents.run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
