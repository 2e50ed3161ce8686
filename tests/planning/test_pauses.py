"""Limits on silence that are learned: they spare slow ranks, and find stuck ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.planning.world import World, job_spec, running, script_spec
from trainmaster.contract.wire.progress_record import Phase, Progress
from trainmaster.host.step_timing import Rhythm, merge_pauses
from trainmaster_operator.planning.facts.job_state import JobPhase, Pause
from trainmaster_operator.planning.facts.view import look
from trainmaster_operator.planning.liveness import hang_thresholds
from trainmaster_operator.planning.liveness.hang import asks_stacks
from trainmaster_operator.planning.liveness.hang_thresholds import Limits, learned, tail_index

NS = 1_000_000_000
STEPS = 10_000


def lognormal(chance: random.Random) -> float:
    return 0.5 * chance.lognormvariate(0, 1.0)


def pareto(chance: random.Random) -> float:
    """No variance: once in 10,000 steps one takes more than 400 times as long as most."""
    return 0.3 * float(chance.paretovariate(1.6))


def stalls(chance: random.Random) -> float:
    """Even steps, and now and then a file system that doesn't answer."""
    return chance.uniform(0.9, 1.1) if chance.random() > 0.003 else chance.uniform(2, 25)


@dataclass
class Run:
    """Ranks that step together, in virtual time, and the planner that sees their reports."""

    world: World
    chance: random.Random
    step_s: Callable[[random.Random], float]
    progress: Progress = field(default_factory=lambda: Progress(phase=Phase.STEP))
    rhythm: Rhythm = field(default_factory=Rhythm)
    report_s: float = 2.0
    steps: int = 10
    suspicions: int = 0
    asked_at: float | None = None

    def __post_init__(self) -> None:
        self.ns = int(self.world.now * NS)
        self.beat(Phase.STEP)

    def beat(self, phase: Phase) -> None:
        self.progress.phase = phase
        self.rhythm.beat(self.progress, self.ns)
        self.progress.beat_ns = self.ns

    def quiet(self, seconds: float, phase: Phase, *, moves: bool = False) -> None:
        """Nobody says anything for so long. The planner looks as often as reports come, once that can matter."""
        self.beat(phase)
        began = self.ns
        passed = hang_thresholds.SHORTEST_S - 0.5
        while passed < seconds and self.alive:
            self.report(began + int(passed * NS), phase, passed, moves)
            passed += self.report_s
        self.ns = began + int(seconds * NS)

    def stepped(self) -> None:
        self.steps += 1
        self.rhythm.stepped(self.progress, self.ns, 0)
        self.beat(Phase.STEP)
        if self.steps % 40 == 0:
            self.report(self.ns, Phase.STEP, 0.0, False)

    def report(self, ns: int, phase: Phase, silent_s: float, moves: bool) -> None:
        world = self.world
        world.now = ns / NS
        asked = asks_stacks(world.status)
        self.asked_at = (self.asked_at or world.now) if asked else None
        self.suspicions += asked and self.asked_at == world.now
        looked = world.now - self.asked_at if self.asked_at is not None else 0.0
        fields: dict[str, Any] = {"step": self.steps, "phase": phase.name.lower(), "silent_s": silent_s}
        if looked:
            fields |= {
                "stack": f'  File "t.py", line {3 + moves * int(ns % 7)}, in f\n',
                "still_s": 0 if moves else looked,
            }
        numbers = merge_pauses([self.progress])
        for slot in world.slots:
            world.agent(slot, ranks=world.ranks(slot, **fields), pauses=numbers)
        world.write()

    @property
    def alive(self) -> bool:
        return self.world.status.round == 1 and self.world.status.phase is JobPhase.RUNNING

    def train(self, steps: int, announced: bool) -> None:
        """Heavy-tailed steps, checkpoints of random length, evaluations. `announced`: our loop says what it does; of a
        script only the steps are seen, and its stack while it evaluates."""
        save, evaluate = (Phase.SAVE, Phase.EVAL) if announced else (Phase.STEP, Phase.STEP)
        chance = self.chance
        while self.steps < steps and self.alive:
            self.quiet(self.step_s(chance), Phase.STEP)
            self.stepped()
            if self.steps % 97 == 0:
                self.quiet(chance.uniform(0.2, 60), save)
                self.beat(Phase.STEP)
            if self.steps % 499 == 0:
                self.quiet(chance.uniform(20, 300), evaluate, moves=True)
                self.beat(Phase.STEP)


def run(seed: int, step_s: Callable[[random.Random], float], *, script: bool = False) -> Run:
    world = running(script_spec(2) if script else job_spec(2), step=10)
    return Run(world, random.Random(f"{seed}/{step_s.__name__}"), step_s)


def cases() -> Iterator[Any]:
    for step_s in (lognormal, pareto, stalls):
        for seed in range(2):
            for script in (False, True):
                yield pytest.param(
                    step_s, seed, script, id=f"{step_s.__name__}-{seed}-{'script' if script else 'loop'}"
                )


@pytest.mark.parametrize(("step_s", "seed", "script"), list(cases()))
def test_ten_thousand_steps_of_any_length_with_checkpoints_and_evaluations_are_never_taken_for_a_hang(
    step_s: Callable[[random.Random], float], seed: int, script: bool
) -> None:
    ranks = run(seed, step_s, script=script)
    ranks.train(STEPS, announced=not script)
    assert ranks.alive, ranks.world.status.lastFailure
    assert ranks.steps == STEPS
    assert ranks.world.status.restarts.total == 0


def test_a_plain_multiple_of_the_longest_pause_would_have_killed_ranks_that_were_merely_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test above can fail: without what is learned of the tail some of these runs don't get through."""
    monkeypatch.setattr(hang_thresholds, "tail_index", lambda pause: 0.0)
    lost = 0
    for seed in range(3):
        ranks = run(seed, pareto)
        ranks.train(STEPS, announced=True)
        lost += not ranks.alive
    assert lost


@pytest.mark.parametrize("script", [False, True])
@pytest.mark.parametrize("step_s", [lognormal, pareto, stalls])
@pytest.mark.parametrize("seed", range(2))
def test_a_rank_that_stops_is_detected_within_twice_the_learned_limit(
    step_s: Callable[[random.Random], float], seed: int, script: bool
) -> None:
    ranks = run(seed, step_s, script=script)
    ranks.train(random.Random(seed).randrange(300, 2000), announced=not script)
    world = ranks.world
    limit = _limit(world)
    began = ranks.ns
    ranks.report_s = world.report_interval_s or 0.5
    ranks.quiet(10_000, Phase.STEP)
    assert world.status.phase is JobPhase.RECOVERING
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.cause == "Hang"
    assert limit <= world.now - began / NS <= 2 * limit


def test_even_steps_get_a_limit_of_seconds() -> None:
    ranks = Run(running(job_spec(), step=10), random.Random(1), lambda chance: chance.uniform(0.9, 1.1))
    for _ in range(300):
        ranks.quiet(ranks.step_s(ranks.chance), Phase.STEP)
        ranks.stepped()
    assert _limit(ranks.world) == hang_thresholds.SHORTEST_S


def _limit(world: World, phase: str = "step") -> float:
    view = look(world.spec, world.status, world.observed(), world.now)
    agent = world.agents[0]
    return Limits(view).of(agent, world.ranks(0, phase=phase)[0])


def learn(world: World, **numbers: list[float]) -> None:
    for slot in world.slots:
        world.agent(slot, pauses=numbers)


@pytest.mark.parametrize(
    ("numbers", "limit"),
    [
        ([0, 0, 0, 0], 600),  # the first steps of a round
        ([19, 1, 1, 0], 600),  # too few to learn from
        ([100, 1, 1, 0], 8),  # even steps
        ([100, 20, 20, 0], 60),  # factor 3
        ([100, 20, 40, 0], 480),  # and a tail
        ([100, 1, 50, 0], 600),  # a heavy one: the spec's limit
        ([100, 380, 400, 0], 600),
        ([100, 400, 500, 0], 750),  # the run itself is slower than the spec expects
        ([100, float("nan"), float("inf"), 0], 8),  # an agent that tells nonsense
        ([100], 8),
    ],
)
def test_the_limit_of_a_step(numbers: list[float], limit: float) -> None:
    world = running(job_spec(), step=10)
    learn(world, step=numbers)
    assert _limit(world) == pytest.approx(limit, rel=0.01)


def test_other_phases_have_limits_of_their_own() -> None:
    world = running(job_spec(), step=10)
    learn(world, step=[100, 1, 1, 0], save=[10, 30, 30, 300], eval=[3, 50, 50, 150])
    assert _limit(world) == 8
    assert _limit(world, "save") == 90
    assert _limit(world, "eval") == 1800  # too few to learn from, and known to take long
    assert _limit(world, "load") == 600


def test_a_spec_that_is_stricter_than_what_was_learned_holds() -> None:
    world = running(job_spec(recovery={"hang": {"limitSeconds": 5}}), step=10)
    learn(world, step=[100, 0.1, 0.1, 0])
    assert _limit(world) == 5


def test_a_restarted_operator_and_a_new_round_go_on_with_what_was_learned() -> None:
    world = running(job_spec(), step=10)
    learn(world, step=[100, 1.0, 2.0, 0], save=[9, 3.0, 4.0, 30.0])
    world.now += 1
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=11))
    world.settle()
    assert world.status.pauses["step"] == Pause(count=100, typical=1.0, longest=2.0, total=0.0)
    learn(world, step=[1, 1.0, 9.0, 0])  # as another round's ranks begin
    view = look(world.spec, world.status, world.observed(), world.now)
    assert learned(view)["step"] == Pause(count=100, typical=1.0, longest=9.0, total=0.0)
    assert learned(view)["save"].longest == 4.0
    learn(world, step=[200, 0.5, 0.6, 0])  # enough of its own
    view = look(world.spec, world.status, world.observed(), world.now)
    assert learned(view)["step"] == Pause(count=200, typical=0.5, longest=0.6, total=0.0)


@pytest.mark.parametrize(
    ("count", "longest", "index"),
    [(1000, 1.0, 0.0), (1000, 31.6, 0.5), (1000, 1e6, 1.0), (1, 5.0, 0.0), (100, 0.5, 0.0)],
)
def test_the_tail_is_read_from_how_far_the_longest_is_from_the_typical(
    count: int, longest: float, index: float
) -> None:
    assert tail_index(Pause(count=count, typical=1.0, longest=longest)) == pytest.approx(index, abs=0.01)
