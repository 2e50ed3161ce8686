"""The crash matrix: in each scenario the operator is killed before and after each of its writes, and started again.

The job must end as it does without a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from trainmaster_operator.cluster.faulty import CrashPoint
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.simulation.agent import SimAgent
from trainmaster_operator.runtime.simulation.run import Outcome, Script, simulate
from trainmaster_operator.runtime.simulation.world import Workload, World


@dataclass(frozen=True)
class Scenario:
    name: str
    script: Script
    phase: str = "Succeeded"
    steps: int = 8
    budget: dict[str, Any] = field(default_factory=lambda: {"inPlace": 5, "pod": 5, "full": 5, "perCause": 5})

    def workload(self) -> Workload:
        return Workload(replicas=2, steps=self.steps, save_every=3, budget=self.budget, restart_s=(0.3, 0.4))


async def _nothing(world: World) -> None:
    return


async def _kill_a_rank(world: World) -> None:
    await world.until_step(5)
    _of_slot_1(world).ranks[0].exit(-9, "killed by signal 9")


async def _kill_a_pod(world: World) -> None:
    await world.until_step(5)
    _of_slot_1(world).die(137, "killed")


def _of_slot_1(world: World) -> SimAgent:
    return next(agent for agent in world.kubelet.living() if agent.identity.slot == 1)


async def _suspend_and_resume(world: World) -> None:
    await world.until_step(4)
    world.edit_job({"spec": {"suspend": True}})
    while world.status().get("phase") != "Suspended" or world.kubelet.living():
        await asyncio.sleep(0.5)
    world.edit_job({"spec": {"suspend": False}})


WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")

SCENARIOS = (
    Scenario("start and finish", _nothing),
    Scenario("in-place restart", _kill_a_rank),
    Scenario("pod replacement", _kill_a_pod),
    Scenario("full restart", _kill_a_rank, budget={"inPlace": 0, "pod": 0, "full": 2, "perCause": 5}),
    Scenario("suspend and resume", _suspend_and_resume, steps=30),
    Scenario("fail", _kill_a_rank, phase="Failed", budget={"inPlace": 0, "pod": 0, "full": 0, "perCause": 5}),
)


def crash_matrix(scenario: Scenario, policies: Policies | None = None) -> Iterator[tuple[str, Outcome]]:
    """The undisturbed run first, then two runs for each of its writes; each outcome with its violations."""
    expected = _run(scenario, policies, None)
    if expected.status.get("phase") != scenario.phase:
        expected.violations.append(f"{scenario.phase} was expected, not {expected.status.get('phase')}")
    yield scenario.name, expected
    for number in range(1, expected.writes + 1):
        for when in WHEN:
            outcome = _run(scenario, policies, CrashPoint(number, when))
            if outcome.summary() != expected.summary():
                outcome.violations.append(f"{outcome.summary()} instead of {expected.summary()}")
            yield f"{scenario.name}, the operator dies {when} write {number} of {expected.writes}", outcome


def _run(scenario: Scenario, policies: Policies | None, crash: CrashPoint | None) -> Outcome:
    may_fail = scenario.phase == "Failed"
    return simulate(
        scenario.name, scenario.workload(), scenario.script, may_fail=may_fail, policies=policies, crash=crash
    )
