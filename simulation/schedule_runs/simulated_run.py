"""Runs one simulated job to its end and says what was wrong with it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from simulation.faults.random_faults import Fault, inject
from simulation.schedule_runs.schedule import Schedule
from simulation.virtual.invariants import State
from simulation.virtual.virtual_storage import Checkpoint
from simulation.virtual.virtual_world import DiesAt, Workload, World
from trainmaster_operator.cluster.port import JOB, KINDS, POD, REVISION, SERVICE
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.virtual_clock import Deadlock, VirtualClock, run_virtual

LONGEST_S = 900.0
"""Every fault is over within two minutes, and the longest job without any takes half a minute. An operator that has
forgotten to look at it again in time is too late: it looks at all jobs every ten minutes or so."""

LONGEST_GROWING_S = 6 * 3600.0
"""The same where nodes come late and another job holds places: a job gives its places back after half an hour, tries
again, and meets orders of nodes that bring nothing."""

SETTLE_S = 60.0

SELDOM = (50_000, 20, 1000)
"""Thresholds of the garbage collector during a run: the first number is of new objects."""

DELETED = "Deleted"

Script = Callable[[World], Coroutine[Any, Any, None]]


@dataclass
class Outcome:
    violations: list[str]
    noted: list[tuple[float, str]]
    status: JobState
    exists: bool  # the job, at the end
    writes: int
    seconds: float  # virtual
    faults: list[Fault] = field(default_factory=list)
    pairs: dict[tuple[State, State], None] = field(default_factory=dict)  # neighbouring states of the job

    @property
    def log(self) -> list[str]:
        return [f"{at:9.4f}  {words}" for at, words in self.noted]

    @property
    def phase(self) -> str:
        return self.status.phase.value if self.exists else DELETED

    def summary(self) -> dict[str, Any]:
        """What must be the same however often the operator died."""
        s = self.status
        return {
            "phase": self.phase,
            "round": s.round,
            "incarnations": s.incarnations,
            "restarts": s.restarts.model_dump(),
            "recoveries": [(r.round, r.cause, r.rung.value) for r in s.recoveries],
            "spent": [(e.rung.value, e.cause) for e in s.spent],
        }


def run_seed(seed: int, policies: Policies | None = None) -> Outcome:
    """One random schedule."""
    return run_schedule(Schedule.of_seed(seed), policies)


def run_growing_seed(seed: int, policies: Policies | None = None) -> Outcome:
    """One random schedule on a cluster whose nodes come late."""
    return run_schedule(Schedule.of_growing_seed(seed), policies)


def run_schedule(schedule: Schedule, policies: Policies | None = None, longest_s: float = LONGEST_S) -> Outcome:
    async def script(world: World) -> None:
        for fault in schedule.faults:
            world.spawn(inject(world, fault))

    if schedule.workload.growth is not None:
        longest_s = max(longest_s, LONGEST_GROWING_S)

    outcome = simulate(
        schedule.seed or schedule.name,
        schedule.workload,
        script,
        fails_with="budget" if schedule.may_fail else "",
        policies=policies,
        longest_s=longest_s,
    )
    outcome.faults = list(schedule.faults)
    return outcome


def simulate(
    name: str,
    workload: Workload,
    script: Script,
    *,
    fails_with: str = "",
    policies: Policies | None = None,
    dies_at: DiesAt | None = None,
    longest_s: float = LONGEST_S,
) -> Outcome:
    """Runs a job with a script beside it until it has ended and everything has come to rest. `fails_with`: words of the
    failure that it may end with; "": it must succeed. `dies_at`: asked before and after each write of the first
    operator."""
    worlds: list[World] = []

    async def main() -> None:
        world = World(name, workload, clock, policies)
        worlds.append(world)
        world.dies_at = dies_at
        world.create_job()
        world.start_operator()
        if world.cluster is not None:
            world.cluster.start()
        world.spawn(script(world))
        try:
            async with asyncio.timeout(longest_s):
                await world.finished.wait()
        except TimeoutError:
            world.violation(f"the job has not ended after {longest_s:g} s")
        await _settle(world)
        _check(world, fails_with)
        world.restarts_operators = False
        world.writes = world.processes[0].cluster.writes
        for process in world.processes:
            await process.stop()
        world.end_tasks()

    violations: list[str] = []
    clock = VirtualClock()
    try:
        with _seldom_collecting():
            run_virtual(main(), clock)
    except Deadlock as error:
        violations.append(str(error))
    world = worlds[0]
    return Outcome(
        violations=[*world.violations, *violations],
        noted=world.noted,
        status=world.status(),
        exists=world.job() is not None,
        writes=world.writes,
        seconds=clock.monotonic(),
        pairs=world.watch.pairs,
    )


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Let the garbage collector look about once in a run. With Python's own thresholds it looks some ten times."""
    _keep_what_stays()
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@cache
def _keep_what_stays() -> None:
    """Exclude all objects that exist before the first run of this process from garbage collections: nearly all of
    them belong to modules."""
    gc.collect()
    gc.freeze()


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


def _check(world: World, fails_with: str) -> None:
    if world.job() is None:
        for kind in (POD, SERVICE, REVISION):
            for left in world.store.list(kind, world.namespace).items:
                world.violation(f"{KINDS[kind].plural} {left['metadata']['name']} is left over from a deleted {JOB}")
    else:
        _check_end(world, fails_with)
    for words in world.storage.broken():
        world.violation(words)
    for agent in world.kubelet.living():
        world.violation(f"the agent of {agent.pod} still lives")
    for name in _live_pods(world):
        world.violation(f"pod {name} is left over")


def _check_end(world: World, fails_with: str) -> None:
    status = world.status()
    phase = status.phase.value
    words = status.lastFailure.message if status.lastFailure is not None else ""
    failed_rightly = fails_with != "" and phase == "Failed" and fails_with in words
    if phase != "Succeeded" and not failed_rightly:
        world.violation(f"the job ended {phase}: {words}")
    if phase == "Succeeded":
        newest = world.storage.newest()
        if newest is None or newest != Checkpoint(status.round, world.workload.steps):
            world.violation(f"it succeeded in round {status.round}, but the newest checkpoint is {newest}")
        known = status.checkpoint
        if not world.workload.script and (known is None or Checkpoint(known.round, known.step) != newest):
            world.violation(f"the newest checkpoint is {newest}, but the status names {known}")
    for condition in status.conditions:
        if condition.type == "ReconcileError":
            world.violation(f"ReconcileError: {condition.message}")
