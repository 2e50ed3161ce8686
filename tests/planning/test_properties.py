"""Properties of the plan over a small world in which anything may happen in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.planning.model import TOTAL, Agent, Model
from tests.planning.world import job_spec, script_spec
from trainmaster.contract.wire import Cause, Verdict
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.planning.facts.job_state import JobPhase, Rung

FOREVER = 1e9

CAUSES = [Cause.CRASH, Cause.OUT_OF_MEMORY, Cause.HARDWARE_FAULT]


class Job(RuleBasedStateMachine):
    model: Model

    @initialize(
        slots=st.integers(1, 4),
        script=st.booleans(),
        limits=st.tuples(*[st.integers(0, 3)] * 3),
        cause=st.integers(1, 3),
        head_start=st.sampled_from([4, 4, 4, 0, 1, 2]),
    )
    def create(self, slots: int, script: bool, limits: tuple[int, int, int], cause: int, head_start: int) -> None:
        in_place, pod, full = limits
        recovery = {
            "budget": {"inPlace": in_place, "pod": pod, "full": full, "perCause": cause, "windowSeconds": FOREVER},
            "hang": {"limitSeconds": 30},
        }
        self.model = self.made(slots, script, recovery)
        self.go_on(head_start)

    def made(self, slots: int, script: bool, recovery: dict[str, Any]) -> Model:
        return Model((script_spec if script else job_spec)(slots, recovery=recovery))

    def go_on(self, times: int) -> None:
        for _ in range(times):
            self.model.kubelet()
            self.all_talk()
            self.model.fixpoint()
            for _ in range(5):
                self.model.train()
            self.model.now += 0.5

    def all_talk(self) -> None:
        for agent in list(self.model.agents.values()):
            self.model.talk(agent)

    def pick(self, number: int, agents: list[Agent]) -> Agent | None:
        ordered = sorted(agents, key=lambda a: (a.slot, a.incarnation))
        return ordered[number % len(ordered)] if ordered else None

    # -- what ought to happen, in whatever order. Few rules: Hypothesis leaves out some of many.

    @rule(times=st.integers(1, 6))
    def all_goes_well_for_a_while(self, times: int) -> None:
        self.go_on(times)

    @rule(what=st.sampled_from(["plan", "kubelet", "talk", "talk all", "train"]), number=st.integers(0, 9))
    def one_of_them_goes_on(self, what: str, number: int) -> None:
        agent = self.pick(number, list(self.model.agents.values()))
        if what == "plan":
            self.model.fixpoint()
        elif what == "kubelet":
            self.model.kubelet()
        elif what == "talk" and agent is not None:
            self.model.talk(agent)
        elif what == "talk all":
            self.all_talk()
        elif what == "train":
            for _ in range(number):
                self.model.train()

    @rule(seconds=st.sampled_from([0.5, 5.0, 25.0, 40.0]))
    def time_passes_without_a_look(self, seconds: float) -> None:
        """Agents and ranks go on meanwhile."""
        end = self.model.now + seconds
        while self.model.now < end:
            self.model.now = min(end, self.model.now + 5.0)
            self.all_talk()
            self.model.train()

    # -- what ought not to happen, but does

    @rule(acts=st.integers(0, 4), written=st.booleans(), passes=st.integers(0, 3))
    def the_operator_dies(self, acts: int, written: bool, passes: int) -> None:
        """After some passes, before or after its next write, or among its acts."""
        for _ in range(passes):
            decision = self.model.look()
            self.model.write(decision)
            self.model.act(decision)
        decision = self.model.look()
        if decision.intent:
            if written:
                self.model.write(decision)
        else:
            self.model.act(decision, acts)
        self.model.restart_operator()

    @rule(
        what=st.sampled_from(
            [*["rank dies"] * 4, "rank stops", "store", "agent dies", "agent is mute", "pod is deleted"]
        ),
        number=st.integers(0, 9),
        cause=st.sampled_from(CAUSES),
        grace_s=st.sampled_from([0.0, 30.0]),
        after=st.sampled_from([0, 0, 1, 3]),
    )
    def something_fails(self, what: str, number: int, cause: Cause, grace_s: float, after: int) -> None:
        model = self.model
        anyone = self.pick(number, list(model.agents.values()))
        runs = self.pick(number, [a for a in model.agents.values() if a.state == "running"])
        pods = sorted(model.pods.values(), key=lambda p: p.name)
        if what == "rank dies" and runs is not None:
            runs.state, runs.verdict = "failed", Verdict(runs.slot, cause, runs.round, "it broke")
        elif what == "rank stops" and runs is not None:
            runs.stopped = True
        elif what == "store" and runs is not None:
            runs.store_lost = True
        elif what == "agent dies" and anyone is not None:
            model.end_pod(next(p for p in pods if p.uid == anyone.uid))
        elif what == "agent is mute" and anyone is not None:
            anyone.mute = True
        elif what == "pod is deleted" and pods:
            model.delete(pods[number % len(pods)], grace_s)
        else:
            return
        model.faults += 1
        self.go_on(after)

    @rule(suspend=st.booleans())
    def somebody_suspends_or_resumes(self, suspend: bool) -> None:
        self.model.faults += self.model.spec.suspend and not suspend  # resuming counts as a free restart
        self.model.spec = self.model.spec.model_copy(update={"suspend": suspend})

    # -- what always holds

    @invariant()
    def nothing_impossible_was_done(self) -> None:
        if hasattr(self, "model"):
            assert self.model.problems == []

    @invariant()
    def the_budget_is_never_exceeded(self) -> None:
        if not hasattr(self, "model"):
            return
        limits, done = self.model.spec.recovery.budget, self.model.status.restarts
        assert done.inPlace <= limits.inPlace
        assert done.pod <= limits.pod
        assert done.full <= limits.full
        spent = [(s.rung, s.cause, s.step) for s in self.model.status.spent if s.rung is not Rung.FREE]
        assert all(spent.count(entry) <= limits.perCause for entry in spent)

    @invariant()
    def each_failure_is_counted_once(self) -> None:
        if hasattr(self, "model"):
            assert self.model.status.restarts.total <= self.model.faults

    @invariant()
    def ranks_of_the_fence_are_of_pods_that_count(self) -> None:
        """Whoever runs the newest round does it in the current incarnation, and there is one of it per slot."""
        if not hasattr(self, "model") or not self.model.status.incarnations:
            return
        counts = unpack_counts(self.model.status.incarnations)
        runs = [a for a in self.model.agents.values() if a.round == self.model.status.round and a.state == "running"]
        if self.model.status.roundStore:
            assert len({a.slot for a in runs}) == len(runs)
            assert all(a.incarnation == counts[a.slot] for a in runs)

    @invariant()
    def the_status_stays_small(self) -> None:
        if hasattr(self, "model"):
            assert len(self.model.status.model_dump_json(exclude_none=True)) < 16_384

    def teardown(self) -> None:
        """With no further faults, every job ends or waits for a person."""
        if not hasattr(self, "model"):
            return
        model = self.model
        for agent in model.agents.values():
            agent.mute = False
        for _ in range(150):
            self.go_on(1)
            model.now += 7.0
            if model.status.phase.finished or (model.spec.suspend and model.status.phase is JobPhase.SUSPENDED):
                break
        self.nothing_impossible_was_done()
        self.the_budget_is_never_exceeded()
        self.each_failure_is_counted_once()
        if model.spec.suspend and not model.status.phase.finished:
            assert model.status.phase is JobPhase.SUSPENDED
            self.go_on(3)
            assert model.pods == {}
            return
        assert model.status.phase.finished, self.story()
        if model.status.phase is JobPhase.SUCCEEDED:
            assert model.status.progress.highestStep == TOTAL
        else:
            assert model.faults > 0

    def story(self) -> dict[str, Any]:
        model = self.model
        return {"status": model.status, "pods": model.pods, "agents": model.agents}


TestJob = Job.TestCase
TestJob.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
