"""A simulated agent: speaks the wire's messages with the operator's fleet and holds ranks that are records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulation.virtual.virtual_leaderless_restart import SimGrant
from simulation.virtual.virtual_ranks import SimRank, SimTrained, StoreHost
from simulation.virtual.virtual_reporter import TERMINATED, SimReporter
from simulation.virtual.virtual_storage import Checkpoint
from trainmaster.contract.wire import (
    Assignment,
    CheckpointRecord,
    Directive,
    DirectiveState,
    ExitCode,
    Identity,
    JoinRequest,
    RankReport,
    Report,
    StoreAddress,
    Verdict,
    environment,
    software_differences,
)
from trainmaster.contract.wire.training_times import KEPT
from trainmaster_operator.cluster.port import Object

if TYPE_CHECKING:
    from simulation.virtual.virtual_world import World

KILLED = -9


_OF_ONE_POD = (environment.SLOT, environment.INCARNATION)


def _contents(pod: Object) -> Object:
    """What all pods of one run have in common, in a form that can be compared."""
    main, *others = pod["spec"]["containers"]
    env = [variable for variable in main["env"] if variable["name"] not in _OF_ONE_POD]
    spec = {name: value for name, value in pod["spec"].items() if name not in ("hostname", "nodeName", "affinity")}
    return {**spec, "containers": [{**main, "env": env}, *others]}


class SimAgent:
    """PID 1 of a pod."""

    def __init__(self, world: World, pod: Object) -> None:
        env = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0].get("env") or []}
        self.world = world
        self.pod = pod["metadata"]["name"]
        self.node = pod["spec"].get("nodeName", "")
        self.identity = Identity(
            job_uid=env[environment.JOB_UID],
            namespace=env[environment.NAMESPACE],
            job=env[environment.JOB],
            role=env[environment.ROLE],
            slot=int(env[environment.SLOT]),
            incarnation=int(env[environment.INCARNATION]),
            pod_uid=pod["metadata"]["uid"],
        )
        self.made_from = _contents(pod)
        self.software = software_differences.program_of(env)
        self.alive = True
        self._cut_off = False
        self.ranks: list[SimRank] = []
        self.round = 0
        self._retired = False  # the round's ranks were ended on request: it is spoken of no more
        self.address = world.listen(self)  # for other agents
        self.directive: Directive | None = None
        self.grant = SimGrant(self)
        self._history: list[SimTrained] = []  # rounds that ended since a leader opened one
        self._unconfirmed = False  # this round was opened by the grant, and no leader has published it
        self._epoch = 0
        self._tag = ""
        self._keeps_store = False
        self._store: StoreHost | None = None  # open for the next round
        self._used_store: StoreHost | None = None  # of this round, if it is ours
        self._verdict: Verdict | None = None
        self._verdict_at = 0.0
        self._stop_at: int | None = None
        self._stop_bound = False
        self._stop_passed: int | None = None
        self._resumed: int | None = None
        self._newest_saved: Checkpoint | None = None
        self.interval_s = 0.5
        self._draining_until: float | None = None
        self._asked_at: float | None = None  # since when stacks are looked at
        self._chance = world.chance(f"agent {self.pod}")
        self._reporter = SimReporter(self, self._chance)

    def start(self) -> None:
        self._reporter.start()

    @property
    def cut_off(self) -> bool:
        """From the operator: it goes on, and nobody hears it."""
        return self._cut_off

    @cut_off.setter
    def cut_off(self, cut_off: bool) -> None:
        if cut_off and not self._cut_off:
            self.world.watch.incident(2)  # it may miss the start of a round, and be given up after that
        self._cut_off = cut_off

    def die(self, exit_code: int, message: str = "", *, told: bool = False) -> None:
        """The whole pod ends: its ranks and stores with it. `told`: it was to end."""
        if not self.alive:
            return
        if exit_code and not told:
            self.world.watch.incident()
        self.alive = False
        self.world.note(f"{self.pod} ends with {exit_code} {message}".rstrip())
        for store in (self._store, self._used_store):
            if store is not None:
                store.alive = False
        for rank in self.ranks:
            rank.exit(KILLED, "its pod ended")
        if not self.cut_off:
            self._reporter.close()
        self.world.kubelet.ended(self, exit_code, message)

    def terminate(self, grace_s: float) -> None:
        """SIGTERM: it has all ranks save, if there are any, and ends when they have, or when the grace is over."""
        if not any(rank.alive for rank in self.ranks) or grace_s <= 1:
            self.die(TERMINATED, "terminated", told=True)
        elif self._draining_until is None:
            self._draining_until = self.world.clock.monotonic() + grace_s
            self._reporter.news.set()
            self.world.spawn(self._end_after(grace_s - 1))

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.die(TERMINATED, "its grace is over", told=True)

    # -- told by ranks and storage

    def resumed(self, round: int, step: int) -> None:
        if round == self.round:
            self._resumed = step
            self._reporter.news.set()

    def stored(self, checkpoint: Checkpoint) -> None:
        """Tell of it in each report until there is a newer one: uploads may end in another order than they began."""
        self._newest_saved = checkpoint if self._newest_saved is None else max(self._newest_saved, checkpoint)
        self._reporter.news.set()

    def lose_store(self) -> None:
        if self._used_store is not None and self._used_store.alive:
            self.world.watch.rank_failed(self.round, self.grant.minor)
            self._used_store.alive = False
            self._reporter.news.set()

    def _ended(self, rank: SimRank) -> None:
        if not self.alive or rank.round != self.round or rank not in self.ranks:
            return
        bad = rank.exit_code not in (ExitCode.OK, ExitCode.SAVED)
        if bad and not rank.cascade:
            self.world.watch.rank_failed(rank.round, self.grant.minor)
        if bad and self._verdict is None:
            self._verdict_at = self.world.clock.monotonic()
            self._verdict = Verdict(
                rank=rank.rank,
                cause=rank.cause,
                round=rank.round,
                message=rank.message,
                exit_code=rank.exit_code,
                step=rank.step,
                cascade=rank.cascade,
            )
        self._reporter.news.set()
        self.grant.look()

    # -- for its grant

    @property
    def verdict(self) -> Verdict | None:
        return self._verdict

    @property
    def offered(self) -> StoreAddress | None:
        return self._offer()

    @property
    def drains(self) -> bool:
        return self._draining_until is not None

    def report_at_once(self) -> None:
        self._reporter.news.set()

    def unanswered(self, since: float, silence_s: float) -> bool:
        """No leader has answered what was asked since then: nobody was reached, or nobody spoke for so long."""
        return self._reporter.unanswered(since, silence_s)

    def begin_granted(self, assignment: Assignment) -> None:
        self.world.note(f"{self.pod} begins round {assignment.round} by the grant")
        self.world.granted[assignment.round] = None
        self._begin(assignment)
        self._reporter.drop()

    # -- messages

    def build_join(self) -> JoinRequest:
        """Return what this agent says when it joins."""
        return JoinRequest(
            self.identity,
            epoch=self._epoch,
            round=0 if self._retired else self.round,
            seen_tag=self._tag,
            next_store=self._offer(),
            peer=self.address,
            software=self.software,
        )

    def build_report(self) -> Report:
        """Return what this agent reports to the leader now."""
        if self._retired:
            return Report(
                self.identity,
                round=0,
                epoch=self._epoch,
                next_store=self._offer(),
                inventory=self._inventory(),
                draining_s=self._draining_s(),
            )
        now = self.world.clock.monotonic()
        verdict = self._verdict
        if verdict is not None:
            verdict = Verdict(**{**verdict.__dict__, "age_s": now - self._verdict_at})
        codes = [rank.exit_code for rank in self.ranks]
        passed = self._stop_passed
        return Report(
            self.identity,
            round=self.round,
            minor=self.grant.minor,
            granted=self.grant.list_granted(),
            epoch=self._epoch,
            ranks=[
                RankReport(
                    rank=rank.rank,
                    pid=1000 + rank.rank,
                    state=rank.state,
                    phase=rank.phase,
                    step=rank.step,
                    total_steps=self.world.workload.steps,
                    silent_s=now - rank.beat_at,
                    exit_code=rank.exit_code,
                    stack=f"it is at step {rank.step}" if self._asked_at is not None else "",
                    still_s=now - max(rank.beat_at, self._asked_at) if self._asked_at is not None else 0.0,
                )
                for rank in self.ranks
            ],
            verdict=verdict,
            saved=bool(codes) and all(code == ExitCode.SAVED for code in codes),
            done=bool(codes) and all(code == ExitCode.OK for code in codes),
            next_store=self._offer(),
            store_lost=self._used_store is not None and not self._used_store.alive,
            inventory=self._inventory(),
            stop_ack=None if passed is not None else self._stop_at,
            stop_passed=passed,
            resumed_step=self._resumed,
            draining_s=self._draining_s(),
            trained=[past.build_record(now) for past in (*self._history, *([self._trained()] if self.ranks else []))],
        )

    def _trained(self) -> SimTrained:
        steps = [rank.first_step_at for rank in self.ranks if rank.first_step_at is not None]
        return SimTrained(
            round=self.round,
            first_step_at=min(steps, default=None),
            last_sign_at=max(rank.beat_at for rank in self.ranks),
            step=max(rank.step for rank in self.ranks),
            resumed=self._resumed,
        )

    def _inventory(self) -> list[CheckpointRecord]:
        newest = self._newest_saved
        return [] if newest is None else [CheckpointRecord(newest.step, newest.round, "storage")]

    def _draining_s(self) -> float | None:
        if self._draining_until is None:
            return None
        return max(0.0, self._draining_until - self.world.clock.monotonic())

    def _offer(self) -> StoreAddress | None:
        return None if self._store is None else self._store.place

    # -- obeying

    def obey(self, directive: Directive) -> None:
        if directive.epoch < self._epoch:
            self.world.note(f"{self.pod} ignores a leader of epoch {directive.epoch}")
            return
        self._epoch = directive.epoch
        self.directive = directive
        self._tag = directive.tag
        if directive.round < self.round and directive.state is not DirectiveState.FINISH:
            return
        self.interval_s = directive.report_interval_s
        if not directive.ask_stacks:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = self.world.clock.monotonic()
        self._keeps_store = directive.keep_store
        if directive.keep_store and self._store is None:
            self.world.spawn(self._open_store_later())
        if directive.state is DirectiveState.FINISH:
            self._end_ranks()
            self.die(0)
        elif directive.state is DirectiveState.HOLD and self.round - self._unconfirmed < directive.round:
            self._end_ranks()
            self._retired = self.round > 0
        elif directive.state is DirectiveState.RUN and directive.assignment is not None:
            assignment = directive.assignment
            granted = self._unconfirmed and assignment.round == self.round
            if assignment.round > self.round or (granted and (self._retired or not self.grant.foresaw(assignment))):
                self._begin(assignment)
            else:
                self._unconfirmed = False
                self.grant.confirm(assignment)
                self._history = [past for past in self._history if past.round >= assignment.round]
            self._stop(directive.stop_at, directive.stop_bound)

    def _begin(self, assignment: Assignment) -> None:
        self._history = [*self._history, self._trained()][-KEPT + 1 :] if assignment.minor and self.ranks else []
        self._end_ranks()
        self.round = assignment.round
        known = self.directive.round if self.directive is not None else assignment.round
        self._unconfirmed = assignment.minor > 0 and known < assignment.round
        self.grant.begin(assignment)
        self._retired = False
        self._verdict = None
        self._resumed = None
        self._stop_at = self._stop_passed = None
        self._stop_bound = False
        address = f"{assignment.store.host}:{assignment.store.port}"
        if self._store is not None and self._store.address == address:
            self._used_store, self._store = self._store, None
            self.world.spawn(self._open_store_later())
        else:
            self._used_store = None
        self.ranks = [
            SimRank(assignment.first_rank + i, self.round, self, self.world.clock.monotonic(), self._ended)
            for i in range(assignment.ranks)
        ]
        self.world.spawn(self._fork(self.ranks, address, assignment.round, assignment.world_size))
        self._reporter.news.set()

    async def _fork(self, ranks: list[SimRank], address: str, round: int, world_size: int) -> None:
        await asyncio.sleep(self._chance.uniform(0.01, 0.1))
        for rank in ranks:
            if rank.alive:
                self.world.meet(address, round, world_size, rank)

    def _stop(self, stop_at: int | None, bound: bool) -> None:
        if stop_at != self._stop_at:
            self._stop_at, self._stop_passed = stop_at, None
            past = [rank.step for rank in self.ranks if stop_at is not None and rank.step >= stop_at]
            if past:
                self._stop_passed = max(past)
            else:
                for rank in self.ranks:
                    rank.stop_at, rank.stop_bound = stop_at, False
            self._reporter.news.set()
        if bound and self._stop_passed is None:
            for rank in self.ranks:
                rank.stop_bound = True

    def _end_ranks(self) -> None:
        ending, self.ranks = self.ranks, []
        for rank in ending:
            rank.exit(KILLED, "ended by its agent")
        if self._used_store is not None:
            self._used_store.alive = False
            self._used_store = None

    def _open_store(self) -> None:
        if self._store is None and self.alive and self._keeps_store:
            self._store = self.world.new_store()
            self._reporter.news.set()

    async def _open_store_later(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.02, 0.2))
        self._open_store()
