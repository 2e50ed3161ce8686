"""A small world for the planner's properties: an API server, agents that obey directives, ranks that step together.

It follows the protocol of an agent (a higher round ends older ranks, a store serves one round) and counts what was
done to it, so that a test can compare that with what the status says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trainmaster.contract.wire import Cause, DirectiveState, RankReport, RankState, StoreAddress, Verdict
from trainmaster_operator.api.compact_lists import unpack_counts, unpack_ranges
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import (
    AgentRecord,
    CheckpointSeen,
    Decision,
    Observation,
    PodRecord,
)
from trainmaster_operator.planning.plan import plan
from trainmaster_operator.planning.rounds.directives import directive
from trainmaster_operator.planning.status_mapping import read_status, write_status

TOTAL = 60
SAVE_EVERY = 10


@dataclass
class Agent:
    """One pod's agent and its only rank."""

    slot: int
    incarnation: int
    uid: str
    round: int = 0
    world: int = 0  # agents of that round
    state: str = "idle"  # idle, running, failed, saved, done
    step: int = 0
    resumed: int = 0
    stop_at: int | None = None
    stop_bound: bool = False
    verdict: Verdict | None = None
    offer: StoreAddress | None = None
    store_lost: bool = False
    heard_at: float | None = None  # by this leader; None: not yet
    mute: bool = False
    stopped: bool = False  # its rank is
    beat_at: float = 0.0


@dataclass
class Model:
    spec: JobSpec
    now: float = 1_700_000_000.0
    epoch: int = 1
    led_since: float = 1_700_000_000.0
    status: JobState = field(default_factory=JobState)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    running_since: dict[str, float] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)  # by pod uid
    checkpoint: int = 0
    lineage: int = 0  # the round that owns the storage
    pods_made: int = 0
    stores_made: int = 0
    used_stores: list[str] = field(default_factory=list)
    faults: int = 0  # injected; each may be counted once
    problems: list[str] = field(default_factory=list)

    # -- the operator

    def observed(self) -> Observation:
        agents = {}
        for agent in self.agents.values():
            if agent.heard_at is not None and self.status.incarnations:
                counts = unpack_counts(self.status.incarnations)
                if agent.slot < len(counts) and agent.incarnation == counts[agent.slot]:
                    agents[agent.slot] = self.record(agent)
        pods = tuple(
            replace(p, running_s=self.now - self.running_since[p.uid] if p.uid in self.running_since else 0.0)
            for p in sorted(self.pods.values(), key=lambda p: p.name)
        )
        seen = CheckpointSeen(self.checkpoint, self.lineage, "storage") if self.checkpoint else None
        return Observation(
            "job", "default", "uid", 1, False, self.epoch, pods, agents, seen, leading_s=self.now - self.led_since
        )

    def record(self, agent: Agent) -> AgentRecord:
        assert agent.heard_at is not None
        exited = agent.state not in ("running", "idle")
        ranks: tuple[RankReport, ...] = ()
        if agent.round:
            ranks = (
                RankReport(
                    rank=agent.slot,
                    pid=1,
                    state=RankState.STOPPED if agent.stopped else RankState.EXITED if exited else RankState.RUNNING,
                    phase="step",
                    step=agent.step,
                    total_steps=TOTAL,
                    silent_s=max(0.0, agent.heard_at - agent.beat_at),
                ),
            )
        moved = agent.stop_at is not None and agent.step > agent.stop_at
        return AgentRecord(
            slot=agent.slot,
            incarnation=agent.incarnation,
            pod_uid=agent.uid,
            round=agent.round,
            parked=agent.round > 0 and agent.state == "idle",
            joined=not agent.mute,
            silent_s=self.now - agent.heard_at,
            ranks=ranks,
            verdict=agent.verdict,
            verdict_age_s=1.0 if agent.verdict else 0.0,
            done=agent.state == "done",
            saved=agent.state == "saved",
            store_lost=agent.store_lost,
            next_store=agent.offer,
            stop_ack=agent.stop_at if not moved else None,
            stop_passed=agent.step if moved else None,
            resumed_step=agent.resumed if agent.round else None,
        )

    def look(self) -> Decision:
        return plan(self.spec, self.status, self.observed(), self.now)

    def write(self, decision: Decision) -> None:
        old = self.status
        self.status = read_status(write_status(decision.status))
        if self.status.round < old.round:
            self.problems.append(f"the round fell from {old.round} to {self.status.round}")
        before, after = unpack_counts(old.incarnations), unpack_counts(self.status.incarnations)
        if any(b > a for b, a in zip(before, after, strict=False)):
            self.problems.append(f"an incarnation fell: {before} -> {after}")
        members = unpack_ranges(old.roundMap)
        kept = before[: len(after)] + [-1] * (len(before) - len(after))
        replaced = [slot for slot in members if kept[slot] != before[slot] or after[slot] != before[slot]]
        if replaced and old.roundStore and self.status.round == old.round:
            self.problems.append("a pod is replaced without a fence")
        if self.status.roundStore and (self.status.round, self.status.roundStore) != (old.round, old.roundStore):
            if self.status.roundStore in self.used_stores:
                self.problems.append(f"store {self.status.roundStore} serves two rounds")
            self.used_stores.append(self.status.roundStore)

    def act(self, decision: Decision, acts: int = 1_000_000) -> None:
        """The first `acts` of a decision's deletes and creates."""
        for delete in decision.delete[:acts]:
            pod = self.pods.get(delete.name)
            if pod is not None and pod.uid == delete.uid:
                self.delete(pod, delete.grace_s)
        for create in decision.create[: max(0, acts - len(decision.delete))]:
            if any(p.slot == create.slot for p in self.pods.values()):
                self.problems.append(f"slot {create.slot} has two pods")
            self.pods_made += 1
            name = f"job-worker-{create.slot}-{create.incarnation}"
            self.pods[name] = PodRecord(
                name, f"uid-{self.pods_made}", "worker", create.slot, create.incarnation, "Pending"
            )

    def fixpoint(self) -> Decision:
        """Passes until nothing is left to write or do. What agents said before a restart is no reason for another."""
        before = self.status.restarts
        for _ in range(30):
            done = self.status.restarts
            if done.inPlace > before.inPlace + 1 or done.full > before.full + 1:
                self.problems.append("one failure restarts all ranks twice")
            decision = self.look()
            if decision.intent:
                if decision.create or decision.delete:
                    self.problems.append("a pass that writes an intent acts too")
                self.write(decision)
                continue
            self.write(decision)
            if not decision.create and not decision.delete:
                again = self.look()
                if again.status != self.status or again.intent or again.create or again.delete:
                    self.problems.append("the fixpoint is none")
                return again
            self.act(decision)
        raise AssertionError(f"no fixpoint: {self.look()}")

    def restart_operator(self) -> None:
        self.epoch += 1
        self.led_since = self.now
        for agent in self.agents.values():
            agent.heard_at = None

    # -- the cluster

    def delete(self, pod: PodRecord, grace_s: float | None) -> None:
        if grace_s == 0 or pod.phase == "Pending":
            self.remove(pod)
        else:
            self.pods[pod.name] = replace(pod, deleting=True)

    def remove(self, pod: PodRecord) -> None:
        self.pods.pop(pod.name, None)
        self.agents.pop(pod.uid, None)

    def kubelet(self) -> None:
        """Pods start and get their agents; pods whose grace is over go."""
        for pod in list(self.pods.values()):
            if pod.deleting:
                self.remove(pod)
            elif pod.phase == "Pending":
                self.pods[pod.name] = replace(pod, phase="Running")
                self.running_since[pod.uid] = self.now
                self.agents[pod.uid] = Agent(pod.slot, pod.incarnation, pod.uid)

    def end_pod(self, pod: PodRecord) -> None:
        self.pods[pod.name] = replace(pod, phase="Failed", exit_code=137)
        self.agents.pop(pod.uid, None)

    # -- the agents

    def talk(self, agent: Agent) -> None:
        """It reports, hears a directive, and obeys."""
        if agent.mute or not self.status.incarnations:
            return
        counts = unpack_counts(self.status.incarnations)
        if agent.slot >= len(counts) or agent.incarnation < counts[agent.slot]:
            return
        agent.heard_at = self.now
        told = directive(self.spec, self.status, self.observed(), agent.slot)
        if told.keep_store and agent.offer is None:
            self.stores_made += 1
            agent.offer = StoreAddress(f"10.0.0.{agent.slot}", self.stores_made)
        if told.state is DirectiveState.FINISH:
            pod = next(p for p in self.pods.values() if p.uid == agent.uid)
            self.pods[pod.name] = replace(pod, phase="Succeeded", exit_code=0)
            self.agents.pop(agent.uid)
            return
        if told.state is DirectiveState.HOLD and told.round > agent.round:
            agent.state, agent.stopped = "idle", False
        if told.state is DirectiveState.RUN and told.assignment is not None and told.round > agent.round:
            agent.round, agent.state, agent.verdict, agent.store_lost = told.round, "running", None, False
            agent.world = told.assignment.group_world_size
            agent.stop_at, agent.stop_bound, agent.stopped = None, False, False
            agent.step = agent.resumed = -1  # loading
            agent.beat_at = self.now
            if told.assignment.store == agent.offer:
                agent.offer = None
        if told.state is DirectiveState.RUN and told.round == agent.round:
            agent.stop_at, agent.stop_bound = told.stop_at, told.stop_bound

    def train(self) -> None:
        """Ranks of one round that are all there step together; a peer's death ends the others."""
        members = [a for a in self.agents.values() if a.round and a.state != "idle"]
        newest = max((a.round for a in members), default=0)
        world = [a for a in members if a.round == newest]
        for agent in [a for a in world if a.state == "running" and not a.stopped]:
            if any(a.state == "failed" for a in world):
                words = "a peer is gone"
                agent.state = "failed"
                agent.verdict = Verdict(agent.slot, Cause.CRASH, agent.round, words, cascade=True)
        alive = [a for a in world if a.state == "running"]
        if not alive or len(alive) < alive[0].world or any(a.stopped for a in alive):
            return
        if newest > self.lineage:
            self.lineage = newest
        for agent in alive:
            if agent.step < 0:
                agent.step = agent.resumed = self.checkpoint
            agent.beat_at = self.now
        at = alive[0].step
        if all(a.stop_at == at and a.stop_bound for a in alive):
            self.checkpoint = at
            for agent in alive:
                agent.state = "saved"
            return
        if any(a.stop_at == at for a in alive):
            return  # wait until it binds or moves
        if at >= TOTAL:
            for agent in alive:
                agent.state = "done"
            return
        for agent in alive:
            agent.step += 1
        if (at + 1) % SAVE_EVERY == 0:
            self.checkpoint = at + 1
