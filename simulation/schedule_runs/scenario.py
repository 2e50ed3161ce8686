"""A scenario of the crash matrix: a job, what happens to it, and how it must end; and what many scenarios share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.schedule_runs.simulated_run import Outcome, Script
from simulation.virtual.virtual_agent import SimAgent
from simulation.virtual.virtual_world import Workload, World
from trainmaster_operator.cluster.port import POD, Forbidden, Object

AMPLE: dict[str, Any] = {"inPlace": 5, "pod": 5, "full": 5, "perCause": 5}
SCRIPT: dict[str, Any] = {"script": True}
DRAINED = ("Preempted", "Evicted")  # saved first, or not: without an operator nobody has ranks save together


@dataclass(frozen=True)
class Scenario:
    name: str
    script: Script
    phase: str = "Succeeded"
    steps: int = 8
    budget: dict[str, Any] = field(default_factory=lambda: AMPLE)
    shape: dict[str, Any] = field(default_factory=dict)  # of the workload
    ends_with: str = "budget"  # words of the failure, if it is to fail
    exact: bool = True  # how often it restarts doesn't depend on when the operator looks
    alike: tuple[str, ...] = ()  # causes that count as one: which it is depends on whether an operator was there

    def workload(self) -> Workload:
        shape = {"replicas": 2, "save_every": 3, "restart_s": (0.3, 0.4), **self.shape}
        return Workload(steps=self.steps, budget=self.budget, **shape)

    def summary(self, outcome: Outcome) -> str:
        """What must be the same however often the operator died."""
        if not self.exact:
            return outcome.phase
        words = str(outcome.summary())
        for cause in self.alike:
            words = words.replace(f"'{cause}'", f"'{self.alike[0]}'")
        return words


def of_slot(world: World, slot: int) -> SimAgent:
    return next(agent for agent in world.kubelet.living() if agent.identity.slot == slot)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.1)


async def kill_a_rank(world: World) -> None:
    await world.until_step(5)
    of_slot(world, 1).ranks[0].exit(-9, "killed by signal 9")


async def kill_a_pod(world: World) -> None:
    await world.until_step(5)
    of_slot(world, 1).die(137, "killed")


async def suspended(world: World) -> None:
    world.edit_job({"spec": {"suspend": True}})
    await until(lambda: world.status().phase == "Suspended" and not world.kubelet.living())
    await asyncio.sleep(5.0)
    world.edit_job({"spec": {"suspend": False}})


def refuse(kind: str, new: Object, old: Any) -> None:
    """A full quota, as the store's admission."""
    if kind == POD and old is None:
        raise Forbidden(f'pods "{new["metadata"]["name"]}" is forbidden: exceeded quota')
