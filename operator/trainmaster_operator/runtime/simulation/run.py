"""Runs one simulated job to its end and says what was wrong with it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from trainmaster_operator.cluster.faulty import CrashPoint
from trainmaster_operator.runtime.clock import Deadlock, VirtualClock, run_virtual
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.simulation.faults import Fault, inject, schedule
from trainmaster_operator.runtime.simulation.storage import Checkpoint
from trainmaster_operator.runtime.simulation.world import Workload, World

LONGEST_S = 1800.0
SETTLE_S = 60.0

Script = Callable[[World], Coroutine[Any, Any, None]]


@dataclass
class Outcome:
    violations: list[str]
    log: list[str]
    status: dict[str, Any]
    writes: int
    seconds: float  # virtual
    faults: list[Fault] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """What must be the same however often the operator died."""
        s = self.status
        return {
            "phase": s.get("phase"),
            "round": s.get("round"),
            "incarnations": s.get("incarnations"),
            "restarts": s.get("restarts"),
            "recoveries": [(r["round"], r["cause"], r["rung"]) for r in s.get("recoveries") or []],
            "spent": [(e["rung"], e["cause"]) for e in s.get("spent") or []],
        }


def run_seed(seed: int, policies: Policies | None = None) -> Outcome:
    """One random schedule. The shape of the job belongs to the seed too."""
    chance = random.Random(f"{seed}/shape")
    replicas = chance.choice((1, 2, 3, 4))
    workload = Workload(
        replicas=replicas,
        ranks_per_pod=chance.choice((1, 1, 2)),
        steps=chance.choice((15, 40)),
        save_every=chance.choice((3, 5, 10)),
        takeover=chance.random() < 0.7,
        script=chance.random() < 0.25,
    )
    tight = chance.random() < 0.15
    if tight:
        workload = Workload(**{**workload.__dict__, "budget": {"inPlace": 2, "pod": 1, "full": 1, "perCause": 2}})
    faults = schedule(random.Random(f"{seed}/faults"), workload.steps)

    async def script(world: World) -> None:
        for fault in faults:
            world.spawn(inject(world, fault))

    outcome = simulate(f"seed {seed}", workload, script, may_fail=tight, policies=policies)
    outcome.faults = faults
    return outcome


def simulate(
    name: str,
    workload: Workload,
    script: Script,
    *,
    may_fail: bool = False,
    policies: Policies | None = None,
    crash: CrashPoint | None = None,
    longest_s: float = LONGEST_S,
) -> Outcome:
    """Runs a job with a script beside it until it has ended and everything has come to rest."""
    worlds: list[World] = []

    async def main() -> None:
        world = World(name, workload, clock, policies)
        worlds.append(world)
        world.crash = crash
        world.create_job()
        world.start_operator()
        world.spawn(script(world))
        try:
            async with asyncio.timeout(longest_s):
                await world.finished.wait()
        except TimeoutError:
            world.violation(f"the job has not ended after {longest_s:g} s")
        await _settle(world)
        _check(world, may_fail)
        world.restarts_operators = False
        if world.operator is not None:
            world.writes = world.operator.cluster.writes
        for process in world.processes:
            await process.stop()
        world.end_tasks()

    violations: list[str] = []
    clock = VirtualClock()
    try:
        run_virtual(main(), clock)
    except Deadlock as error:
        violations.append(str(error))
    world = worlds[0]
    return Outcome(
        violations=[*world.violations, *violations],
        log=world.log,
        status=world.status(),
        writes=world.writes,
        seconds=clock.monotonic(),
    )


async def _settle(world: World) -> None:
    """Gives what runs on after the job's end time to end."""
    waited = 0.0
    while waited < SETTLE_S and (world.kubelet.living() or world.uploads or _live_pods(world)):
        await asyncio.sleep(1.0)
        waited += 1.0


def _live_pods(world: World) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in world.pods()
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]


def _check(world: World, may_fail: bool) -> None:
    status = world.status()
    phase = status.get("phase")
    failed_rightly = may_fail and phase == "Failed" and "budget" in (status.get("lastFailure") or {}).get("message", "")
    if phase != "Succeeded" and not failed_rightly:
        world.violation(f"the job ended {phase}: {(status.get('lastFailure') or {}).get('message', '')}")
    for words in world.storage.broken():
        world.violation(words)
    if phase == "Succeeded":
        newest = world.storage.newest()
        if newest is None or newest != Checkpoint(status["round"], world.workload.steps):
            world.violation(f"it succeeded in round {status['round']}, but the newest checkpoint is {newest}")
    for agent in world.kubelet.living():
        world.violation(f"the agent of {agent.pod} still lives")
    for name in _live_pods(world):
        world.violation(f"pod {name} is left over")
    for condition in status.get("conditions") or []:
        if condition["type"] == "ReconcileError":
            world.violation(f"ReconcileError: {condition['message']}")
