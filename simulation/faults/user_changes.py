"""What people change while a job runs: its spec, and the operator's release. None of it may mix two runs."""

from __future__ import annotations

import asyncio

from simulation.faults.simulated_fault import Fault
from simulation.faults.workload_faults import Act
from simulation.virtual.virtual_world import World
from trainmaster_operator.cluster.port import Object


async def _edit_job(world: World, fault: Fault) -> None:
    """Something that all ranks share; every third edit is taken back later."""
    world.edit_job({"spec": edited(world, fault.number)})
    if fault.number % 3 == 0:
        await asyncio.sleep(fault.seconds)
        world.edit_job({"spec": edited(world, 0)})


async def _edit_and_restart_job(world: World, fault: Fault) -> None:
    await _edit_job(world, fault)
    await asyncio.sleep(fault.seconds / 10)
    job = world.job()
    if job is not None:
        world.edit_job({"spec": {"restart": job["spec"].get("restart", 0) + 1}})


async def _upgrade_operator(world: World, fault: Fault) -> None:
    """Another image for trainers, and another form of pods. The one before ends first, or still runs for a while."""
    world.release += 1
    process = world.operator
    if fault.number % 2:
        while world.operator is None or not world.operator.leads:
            await asyncio.sleep(0.1)
        world.start_operator(takeover=True)
    elif process is not None:
        await process.stop()
        world.operator_died(process)


def edited(world: World, number: int) -> Object:
    """The number 0 is as the job began."""
    if world.workload.script:
        return {"workers": {"template": world.workload.template(number)}}
    return {"training": {"optimizer": {"lr": 1e-3 * (1 + number)}}}


KINDS: dict[str, Act] = {
    "edit-job": _edit_job,
    "edit-and-restart-job": _edit_and_restart_job,
    "upgrade-operator": _upgrade_operator,
}
