"""Builders for tables of the planner's tests: a job, and what is seen of its pods and agents, in few words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from trainmaster.contract.wire import Cause, RankReport, RankState, StoreAddress, Verdict
from trainmaster_operator.api.compact_lists import unpack_counts, unpack_ranges
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import (
    AgentRecord,
    CheckpointSeen,
    Decision,
    Observation,
    PodRecord,
    Refusal,
    SaveFailed,
    StandbyAnswers,
)
from trainmaster_operator.planning.plan import plan
from trainmaster_operator.planning.status_mapping import read_status, write_status

NOW = 1_700_000_000.0

TRAINING = {"data": {"path": "@stdlib"}, "steps": 100, "batch": {"global": 840}}


def job_spec(replicas: int = 4, ranks: int = 1, **fields: Any) -> JobSpec:
    base: dict[str, Any] = {"workers": {"replicas": replicas, "ranksPerPod": ranks}, "training": TRAINING}
    return JobSpec.model_validate({**base, **fields})


def script_spec(replicas: int = 4, **fields: Any) -> JobSpec:
    template = {"spec": {"containers": [{"command": ["python", "train.py"]}]}}
    workers = {"replicas": replicas, "ranksPerPod": 1, "template": template}
    return JobSpec.model_validate({"framework": "PyTorch", "workers": workers, **fields})


def store(slot: int, number: int) -> StoreAddress:
    return StoreAddress(f"10.0.0.{slot}", 1000 + number)


def verdict(rank: int = 2, cause: Cause = Cause.CRASH, round: int = 1, **fields: Any) -> Verdict:
    return Verdict(**{"rank": rank, "cause": cause, "round": round, "message": "it broke", **fields})


@dataclass
class World:
    """One job as the planner meets it, pass after pass. Slots count from 0, each with one agent."""

    spec: JobSpec = field(default_factory=job_spec)
    status: JobState = field(default_factory=JobState)
    now: float = NOW
    epoch: int = 1
    leading_s: float = 1000.0
    report_interval_s: float = 0.0
    pods: dict[int, PodRecord] = field(default_factory=dict)
    agents: dict[int, AgentRecord] = field(default_factory=dict)
    checkpoint: CheckpointSeen | None = None
    failed_save: SaveFailed | None = None
    refusal: Refusal | None = None
    deleting: bool = False
    revision: str = ""
    waiting: tuple[str, ...] = ()
    revision_lost: bool = False
    in_cluster: bool = False
    standby_answers: StandbyAnswers = field(default_factory=StandbyAnswers)
    stores: int = 0
    unheard: frozenset[int] = frozenset()  # slots whose agents have not heard that their round is over

    def _obedient(self, agent: AgentRecord) -> AgentRecord:
        """Agents end their ranks when they hear that a round forms."""
        parked = agent.round > 0 and not self.status.roundStore and agent.slot not in self.unheard
        return agent if agent.parked == parked else replace(agent, parked=parked)

    def observed(self) -> Observation:
        return Observation(
            name="job",
            namespace="default",
            uid="uid",
            generation=1,
            deleting=self.deleting,
            epoch=self.epoch,
            pods=tuple(self.pods[s] for s in sorted(self.pods)),
            agents={slot: self._obedient(agent) for slot, agent in self.agents.items()},
            checkpoint=self.checkpoint,
            failed_save=self.failed_save,
            refusal=self.refusal,
            revision=self.revision,
            waiting=self.waiting,
            revision_lost=self.revision_lost,
            in_cluster=self.in_cluster,
            leading_s=self.leading_s,
            report_interval_s=self.report_interval_s,
            standby_answers=self.standby_answers,
        )

    def plan(self) -> Decision:
        return plan(self.spec, self.status, self.observed(), self.now)

    def write(self) -> Decision:
        """One pass whose status is written."""
        decision = self.plan()
        for event in decision.events:
            assert not re.search(r"\bNone\b", event.message), event.message
        if decision.status is self.status:
            return decision
        self.status = read_status(write_status(decision.status))
        return decision

    def settle(self) -> Decision:
        """Passes until no intent is left; pods are not created or deleted by it."""
        for _ in range(20):
            decision = self.write()
            if not decision.intent:
                return decision
        raise AssertionError("the plan doesn't settle")

    def pod(self, slot: int, **fields: Any) -> None:
        """A running pod of the slot's current incarnation, or a change of it."""
        incarnation = unpack_counts(self.status.incarnations)[slot]
        name = f"job-worker-{slot}-{incarnation}"
        known = self.pods.get(slot)
        if known is None or known.incarnation != incarnation:
            known = PodRecord(name, f"uid-{slot}-{incarnation}", "worker", slot, incarnation, "Running", running_s=1.0)
        self.pods[slot] = replace(known, **fields)

    def agent(self, slot: int, **fields: Any) -> None:
        """An agent that has joined in the slot's pod and offers a fresh store, or a change of it."""
        pod = self.pods[slot]
        known = self.agents.get(slot)
        if known is None or known.pod_uid != pod.uid:
            self.stores += 1
            known = AgentRecord(slot, pod.incarnation, pod.uid, next_store=store(slot, self.stores))
        self.agents[slot] = replace(known, **fields)

    def obey(self, slot: int, step: int = 0, resumed: int | None = None, **fields: Any) -> None:
        """The agent runs the status' round; its ranks stand at `step`, and it offers a next store."""
        self.stores += 1
        obeyed: dict[str, Any] = {
            "next_store": store(slot, self.stores),
            "verdict": None,
            "verdict_age_s": 0.0,
            "done": False,
            "saved": False,
            "nothing_saved": False,
            "upload": None,
            "store_lost": False,
            "pauses": {},
            "last_save": 0,
            "saved_before": 0,
            "loaded": False,
            "round": self.status.round,
            "resumed_step": resumed,
            "stop_ack": None,
            "stop_passed": None,
            "ranks": self.ranks(slot, step=step),
        }
        self.agent(slot, **{**obeyed, **fields})

    def ranks(self, slot: int, **fields: Any) -> tuple[RankReport, ...]:
        base = {"pid": 1, "state": RankState.RUNNING, "phase": "step", "total_steps": 100}
        each = self.spec.workers.ranksPerPod
        place = _places(self.status.roundMap).get(slot, slot)
        return tuple(RankReport(**{"rank": place * each + i, **base, **fields}) for i in range(each))

    @property
    def slots(self) -> range:
        workers = self.spec.workers
        return range(len(unpack_counts(self.status.incarnations)) or workers.replicas + workers.spares)

    @property
    def members(self) -> list[int]:
        """Slots in rank order."""
        return unpack_ranges(self.status.roundMap) or list(range(self.spec.workers.replicas))


@lru_cache(maxsize=4)
def _places(round_map: str) -> dict[int, int]:
    return {slot: place for place, slot in enumerate(unpack_ranges(round_map))}


def pending(spec: JobSpec | None = None) -> World:
    """Pods were created, none has an agent."""
    world = World(spec or job_spec())
    world.settle()
    for slot in world.slots:
        world.pod(slot)
    return world


def opened(spec: JobSpec | None = None) -> World:
    """Round 1 is open and every agent runs it; no step has been made."""
    world = pending(spec)
    for slot in world.slots:
        world.agent(slot)
    world.settle()
    for slot in world.members:
        world.obey(slot)
    world.settle()
    return world


def running(spec: JobSpec | None = None, step: int = 10) -> World:
    """Round 1 trains."""
    world = opened(spec)
    world.now += 5
    for slot in world.members:
        world.obey(slot, step=step, resumed=0 if world.spec.training else None)
    world.settle()
    return world


def recovered(world: World, step: int, resumed: int | None = None) -> None:
    """Replaced pods come up, agents join and run the open round up to `step`."""
    for slot in world.slots:
        world.pod(slot)
        world.agent(slot)
    world.settle()
    for slot in world.members:
        world.obey(slot, step=step, resumed=resumed)
    world.settle()
