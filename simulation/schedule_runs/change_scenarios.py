"""Scenarios of the crash matrix in which a person changes the job: it is suspended, edited, resized or deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.faults.user_changes import edited
from simulation.schedule_runs.scenario import (
    SCRIPT,
    Scenario,
    kill_a_pod,
    of_slot,
    refuse,
    suspended,
    until,
)
from simulation.schedule_runs.simulated_run import DELETED
from simulation.virtual.virtual_world import World
from trainmaster_operator.cluster.port import JOB


async def _suspend_before_the_start(world: World) -> None:
    await until(lambda: bool(world.pods()))
    world.edit_job({"spec": {"suspend": True}})
    await until(lambda: world.status().phase == "Suspended" and not world.pods())
    world.edit_job({"spec": {"suspend": False}})


async def _suspend_twice(world: World) -> None:
    for step in (4, 12):
        await world.until_step(step)
        await suspended(world)


async def _delete_in_mid_recovery(world: World) -> None:
    await kill_a_pod(world)
    await until(lambda: world.status().phase == "Recovering")
    world.store.delete(JOB, world.namespace, world.name)


async def _delete_while_suspended(world: World) -> None:
    await world.until_step(4)
    world.edit_job({"spec": {"suspend": True}})
    await until(lambda: world.status().phase == "Suspended")
    world.store.delete(JOB, world.namespace, world.name)


async def _recreate_in_mid_recovery(world: World) -> None:
    await kill_a_pod(world)
    await until(lambda: world.status().phase == "Recovering")
    world.comes_back += 1
    world.store.delete(JOB, world.namespace, world.name)
    world.comes_back -= 1
    world.create_job()


async def _grow(world: World) -> None:
    await world.until_step(4)
    world.edit_job({"spec": {"workers": {"replicas": 3}}})
    await until(lambda: world.status().workers.replicas == 3)


async def _change_its_mind(world: World) -> None:
    """Larger, and back before the pods are there."""
    await world.until_step(4)
    world.edit_job({"spec": {"workers": {"replicas": 4}}})
    await until(lambda: len(world.pods()) > 2)
    world.edit_job({"spec": {"workers": {"replicas": 2}}})


async def _go_on_with_fewer(world: World) -> None:
    """A pod is lost while there is no place for another one: the job shrinks, and grows again later."""
    world.edit_job({"spec": {"recovery": {"elastic": {"waitSeconds": 3, "cooldownSeconds": 5}}}})
    await world.until_step(5)
    world.store.admission = refuse
    of_slot(world, 1).die(137, "killed")
    await until(lambda: world.status().workers.replicas == 1)
    await asyncio.sleep(2.0)
    world.store.admission = None


async def _edit_and_lose_a_pod(world: World) -> None:
    """Its successor is as the others are."""
    await world.until_step(3)
    world.edit_job({"spec": edited(world, 1)})
    await kill_a_pod(world)


async def _upgrade_and_lose_a_pod(world: World) -> None:
    await world.until_step(3)
    world.release += 1
    process = world.operator
    if process is not None:
        await process.stop()
        world.operator_died(process)
    await kill_a_pod(world)


async def _edit_before_the_start(world: World) -> None:
    await until(lambda: bool(world.pods()))
    world.edit_job({"spec": edited(world, 1)})


async def _edit_and_restart(world: World) -> None:
    await world.until_step(4)
    world.edit_job({"spec": {**edited(world, 1), "restart": 1}})
    await until(lambda: world.status().restartObeyed == 1)


ELASTIC: dict[str, Any] = {"elastic": True}

CHANGES = (
    Scenario("suspended before the start", _suspend_before_the_start),
    Scenario("suspended twice", _suspend_twice, steps=30, exact=False),
    Scenario("deleted in mid-recovery", _delete_in_mid_recovery, phase=DELETED),
    Scenario("deleted while suspended", _delete_while_suspended, steps=30, phase=DELETED),
    Scenario("recreated in mid-recovery", _recreate_in_mid_recovery),
    Scenario("edit and lost pod", _edit_and_lose_a_pod),
    Scenario("edit and lost pod of a script", _edit_and_lose_a_pod, shape=SCRIPT),
    Scenario("upgrade and lost pod", _upgrade_and_lose_a_pod),
    Scenario("edit before the start", _edit_before_the_start),
    Scenario("edit and restart", _edit_and_restart, steps=30),
    Scenario("growth", _grow, steps=60, shape=ELASTIC, exact=False),
    Scenario("growth that is called off", _change_its_mind, steps=60, shape=ELASTIC, exact=False),
    Scenario("fewer pods for a while", _go_on_with_fewer, steps=80, shape=ELASTIC, exact=False),
)
