"""Scenarios of the crash matrix: each is a job, one thing that happens to it, and how it must end in any case."""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.schedule_runs.change_scenarios import CHANGES
from simulation.schedule_runs.failure_scenarios import FAILURES
from simulation.schedule_runs.scenario import (
    DRAINED,
    SCRIPT,
    Scenario,
    kill_a_pod,
    kill_a_rank,
    of_slot,
    refuse,
    suspended,
    until,
)
from simulation.schedule_runs.simulated_run import DELETED
from simulation.virtual.virtual_world import World
from trainmaster_operator.cluster.port import JOB, POD


async def _nothing(world: World) -> None:
    return


async def _suspend_and_resume(world: World) -> None:
    await world.until_step(4)
    await suspended(world)


async def _suspend_in_mid_recovery(world: World) -> None:
    await kill_a_pod(world)
    await until(lambda: world.status().phase == "Recovering")
    await suspended(world)


async def _evict(world: World) -> None:
    """Drained: all ranks save first."""
    await world.until_step(4)
    world.watch.incident()
    world.store.evict(world.namespace, of_slot(world, 1).pod)


async def _delete_a_pod(world: World) -> None:
    await world.until_step(4)
    world.watch.incident()
    world.store.delete(POD, world.namespace, of_slot(world, 0).pod)


async def _lose_a_node(world: World) -> None:
    await world.until_step(5)
    agent = of_slot(world, 1)
    world.kubelet.node_answers(agent, False)
    await asyncio.sleep(60.0)
    world.kubelet.node_answers(agent, True)


async def _hang(world: World) -> None:
    await world.until_step(5)
    world.watch.incident()
    of_slot(world, 1).ranks[0].stopped = True


async def _lose_the_store(world: World) -> None:
    await world.until_step(5)
    for agent in world.kubelet.living():
        agent.lose_store()


async def _refuse_pods(world: World) -> None:
    """The quota is full when a pod must be replaced."""
    await world.until_step(5)
    world.store.admission = refuse
    of_slot(world, 1).die(137, "killed")
    await asyncio.sleep(12.0)
    world.store.admission = None


async def _give_the_gang_back(world: World) -> None:
    """Survivors let their places go while a pod finds none."""
    world.edit_job({"spec": {"scheduling": {"releaseSeconds": 5}}})
    task = asyncio.ensure_future(_refuse_pods(world))
    await asyncio.shield(task)


async def _replace_the_operator(world: World) -> None:
    """As an upgrade does, in mid-recovery."""
    await kill_a_rank(world)
    process = world.operator
    if process is not None:
        await process.stop()
        world.operator_died(process)


async def _outlive_the_operator(world: World) -> None:
    """A second operator takes over while the first one still believes it leads, in mid-recovery."""
    await kill_a_pod(world)
    if world.operator is not None:
        world.start_operator(takeover=True)


async def _delete_the_job(world: World) -> None:
    await world.until_step(5)
    if world.job() is not None:
        world.store.delete(JOB, world.namespace, world.name)


async def _recreate_the_job(world: World) -> None:
    await world.until_step(5)
    world.comes_back += 1
    world.store.delete(JOB, world.namespace, world.name)
    await asyncio.sleep(0.2)
    world.comes_back -= 1
    world.create_job()


async def _fail_twice(world: World) -> None:
    await kill_a_rank(world)
    await world.until_step(7)
    of_slot(world, 1).die(137, "killed")


async def _fail_together(world: World) -> None:
    """A pod ends while its peer's rank has just crashed."""
    await kill_a_rank(world)
    of_slot(world, 0).die(137, "killed")


async def _shrink_and_grow(world: World) -> None:
    await world.until_step(4)
    world.edit_job({"spec": {"workers": {"replicas": 1}}})
    await until(lambda: world.status().workers.replicas == 1 and world.status().phase == "Running")
    world.edit_job({"spec": {"workers": {"replicas": 3}}})


FEW: dict[str, Any] = {"inPlace": 0, "pod": 0, "full": 2, "perCause": 5}
NONE: dict[str, Any] = {"inPlace": 0, "pod": 0, "full": 0, "perCause": 5}

SCENARIOS = (
    Scenario("start and finish", _nothing),
    Scenario("in-place restart", kill_a_rank),
    Scenario("in-place restart of a script", kill_a_rank, shape=SCRIPT),
    Scenario("pod replacement", kill_a_pod),
    Scenario("pod replacement of a script", kill_a_pod, shape=SCRIPT),
    Scenario("pod replaced by a spare", kill_a_pod, shape={"spares": 1}),
    Scenario("full restart", kill_a_rank, budget=FEW),
    Scenario("full restart of three", kill_a_pod, budget=FEW, shape={"replicas": 3}),
    Scenario("suspend and resume", _suspend_and_resume, steps=30),
    Scenario("suspend in mid-recovery", _suspend_in_mid_recovery, steps=30),
    Scenario("eviction", _evict, steps=20, alike=DRAINED),
    Scenario("eviction with a spare", _evict, steps=20, shape={"spares": 1}, alike=DRAINED),
    Scenario("deleted pod of rank 0", _delete_a_pod, steps=20, alike=DRAINED),
    Scenario("lost node", _lose_a_node),
    Scenario("hang", _hang),
    Scenario("hang of a script", _hang, shape=SCRIPT),
    Scenario("lost store", _lose_the_store),
    Scenario("refused pods", _refuse_pods),
    Scenario("gang given back", _give_the_gang_back),
    Scenario("operator replaced", _replace_the_operator),
    Scenario("operator outlived", _outlive_the_operator),
    Scenario("deleted job", _delete_the_job, phase=DELETED),
    Scenario("recreated job", _recreate_the_job),
    Scenario("two failures, one after the other", _fail_twice),
    Scenario("two failures at once", _fail_together, shape={"replicas": 3}, exact=False),
    Scenario("shrink and grow", _shrink_and_grow, steps=60, shape={"replicas": 3, "elastic": True}, exact=False),
    Scenario("fail", kill_a_rank, phase="Failed", budget=NONE),
    *FAILURES,
    *CHANGES,
)
