"""Simulated ranks: one world of processes that step together, and break together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.virtual.virtual_storage import Checkpoint, Fenced
from trainmaster.contract.wire import Cause, ExitCode, RankState, StoreAddress, Trained

if TYPE_CHECKING:
    from simulation.virtual.virtual_agent import SimAgent
    from simulation.virtual.virtual_world import World


@dataclass
class SimRank:
    """A process. `ended` tells its agent."""

    rank: int
    round: int
    agent: SimAgent
    beat_at: float
    ended: Callable[[SimRank], None]
    phase: str = "START"
    step: int = 0
    exit_code: int | None = None
    cause: Cause = Cause.CRASH
    message: str = ""
    cascade: bool = False
    stopped: bool = False  # by SIGSTOP
    stop_at: int | None = None
    stop_bound: bool = False
    first_step_at: float | None = None

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    @property
    def state(self) -> RankState:
        if not self.alive:
            return RankState.EXITED
        if self.stopped:
            return RankState.STOPPED
        return RankState.RUNNING if self.phase == "STEP" else RankState.STARTING

    @property
    def waits_to_stop(self) -> bool:
        return self.stop_at is not None and self.step == self.stop_at

    def exit(self, code: int, message: str = "", cause: Cause = Cause.CRASH, cascade: bool = False) -> None:
        if self.alive:
            self.exit_code, self.message, self.cause, self.cascade = code, message, cause, cascade
            self.ended(self)


@dataclass(frozen=True)
class SimTrained:
    """When a round trained on one agent; times are the simulation's."""

    round: int
    first_step_at: float | None
    last_sign_at: float
    step: int
    resumed: int | None

    def build_record(self, now: float) -> Trained:
        """Return the round with its two moments as ages, in seconds before `now`."""
        return Trained(
            round=self.round,
            first_step_s=now - self.first_step_at if self.first_step_at is not None else None,
            last_sign_s=now - self.last_sign_at,
            step=self.step,
            resumed_step=self.resumed,
        )


@dataclass
class StoreHost:
    """A TCPStore at an address; it lives no longer than its agent."""

    place: StoreAddress
    alive: bool = True
    rounds: dict[int, None] = field(default_factory=dict)  # that used it

    @property
    def address(self) -> str:
        return f"{self.place.host}:{self.place.port}"


class Broken(Exception):
    """This world of ranks can't go on."""


class SimRound:
    """The ranks that met at one store."""

    def __init__(self, world: World, store: StoreHost, number: int, world_size: int) -> None:
        self.world = world
        self.store = store
        self.number = number
        self.world_size = world_size
        self.ranks: dict[int, SimRank] = {}
        self.step = 0
        self.resumed = 0
        self._chance = world.chance(f"round {store.address}")

    def join(self, rank: SimRank) -> None:
        if rank.rank in self.ranks:
            self.world.violation(f"rank {rank.rank} joined round {self.number} twice at {self.store.address}")
        first = next(iter(self.ranks.values()), rank).agent
        if rank.agent.made_from != first.made_from:
            self.world.violation(f"round {self.number} holds pods of two revisions: {first.pod} and {rank.agent.pod}")
        self.ranks[rank.rank] = rank
        if len(self.ranks) == 1:
            self.world.spawn(self._run())

    async def _run(self) -> None:
        try:
            await self._train()
        except Fenced as error:
            self._exit_all(ExitCode.FENCED, str(error), Cause.FENCED)
        except Broken:
            await asyncio.sleep(self._chance.uniform(0.005, 0.15))
            self._exit_all(ExitCode.PEER_LOST, "a peer is gone", cascade=True)

    async def _train(self) -> None:
        world, limits = self.world, self.world.workload
        self._phase("RENDEZVOUS")
        while len(self.ranks) < self.world_size:
            await self._wait(0.02)
        self._phase("BUILD")
        await self._wait(self._chance.uniform(0.05, 0.3))
        waited = 0.0
        while not limits.script and waited < 5 and any(u.owned_by(self._agents()) for u in world.uploads):
            await self._wait(0.05)
            waited += 0.05
        self._phase("LOAD")
        found = world.storage.newest() if limits.script else world.storage.open_round(self.number)
        self.resumed = self.step = found.step if found else 0
        world.note(f"round {self.number} resumes at {self.step}")
        if not limits.script:
            for rank in self.ranks.values():
                rank.step = self.step
                rank.agent.resumed(self.number, self.step)
        self._phase("STEP")
        while self.step < limits.steps:
            await self._wait(self._chance.uniform(0.8, 1.2) * limits.step_s)
            self.step += 1
            self._advance()
            if self.step % limits.save_every == 0:
                self._save()
            if await self._stop_wanted():
                break
        self._phase("DRAIN")
        upload = self._save()
        while not upload.over:  # the last checkpoint must be there before the ranks end
            await self._wait(0.05)
        self._exit_all(ExitCode.SAVED if self.step < limits.steps else ExitCode.OK)

    def _save(self) -> Upload:
        upload = Upload(self.world, Checkpoint(self.number, self.step), self._agents(), self._chance.uniform(0.05, 0.8))
        if self.world.workload.script:
            self.world.storage.write_over(upload.checkpoint)  # in the step itself, by rank 0
        self.world.uploads[upload] = None
        self.world.spawn(upload.run())
        return upload

    async def _stop_wanted(self) -> bool:
        """A rank at its stop_at waits until that binds, or moves up; the others wait for it in their next step."""
        while any(rank.waits_to_stop for rank in self.ranks.values()):
            if all(rank.waits_to_stop and rank.stop_bound for rank in self.ranks.values()):
                return True
            await self._wait(0.005)
            self._beat()
        return False

    async def _wait(self, seconds: float) -> None:
        """Raises Broken when a rank is gone; waits on while one is stopped."""
        while True:
            await asyncio.sleep(seconds)
            if not self.store.alive or any(not rank.alive for rank in self.ranks.values()):
                raise Broken
            if not any(rank.stopped for rank in self.ranks.values()):
                return
            seconds = 0.1

    def _advance(self) -> None:
        for rank in self.ranks.values():
            rank.step = self.step - (self.resumed if self.world.workload.script else 0)
            if rank.first_step_at is None:
                rank.first_step_at = self.world.clock.monotonic()
        self._beat()
        self.world.stepped(self.number, self.step, self._agents())

    def _beat(self) -> None:
        for rank in self.ranks.values():
            rank.beat_at = self.world.clock.monotonic()

    def _phase(self, name: str) -> None:
        for rank in self.ranks.values():
            rank.phase = name
        self._beat()

    def _agents(self) -> list[SimAgent]:
        return list({id(rank.agent): rank.agent for rank in self.ranks.values()}.values())

    def _exit_all(self, code: int, message: str = "", cause: Cause = Cause.CRASH, cascade: bool = False) -> None:
        for rank in list(self.ranks.values()):
            if not rank.stopped:
                rank.exit(code, message, cause, cascade)


class Upload:
    """Agents bring the shards of one checkpoint to storage. It outlives ranks, not its agents."""

    def __init__(self, world: World, checkpoint: Checkpoint, agents: list[SimAgent], seconds: float) -> None:
        self.world = world
        self.checkpoint = checkpoint
        self.agents = agents
        self.seconds = seconds
        self.over = False

    def owned_by(self, agents: list[SimAgent]) -> bool:
        return any(agent in agents for agent in self.agents)

    async def run(self) -> None:
        storage = self.world.storage
        storage.begun[self.checkpoint] = None
        try:
            await asyncio.sleep(self.seconds)
            if storage.newest_round > self.checkpoint.round:
                self.world.note(f"{self.checkpoint} is given up: a newer round owns the storage")
                return
            if self.world.workload.script:
                return  # it has written its own file
            await asyncio.sleep(self.seconds / 4)  # between that look and the manifest anything may happen
            if all(agent.alive for agent in self.agents):
                storage.manifests[self.checkpoint] = None
                storage.begun.pop(self.checkpoint, None)
                # The agent whose shard comes last writes the manifest, and it alone tells of the checkpoint.
                self.agents[self.checkpoint.step % len(self.agents)].stored(self.checkpoint)
                for agent in self.agents:
                    agent.report_at_once()
        finally:
            self.over = True
            del self.world.uploads[self]
