"""The operator is upgraded while a job of the former version trains: the job trains on, and nobody touches its pods."""

from __future__ import annotations

import asyncio

import pytest

from simulation.virtual.virtual_world import Workload, World
from trainmaster_operator.cluster.port import JOB, POD
from trainmaster_operator.planning.status_mapping import read_status
from trainmaster_operator.runtime.virtual_clock import VirtualClock, run_virtual


@pytest.mark.parametrize("script", [False, True], ids=["trained", "script"])
def test_a_job_of_the_former_version_trains_on_without_the_operator(script: bool) -> None:
    clock = VirtualClock()
    worlds: list[World] = []

    async def main() -> None:
        world = World("upgrade", Workload(replicas=2, steps=100_000, script=script), clock)
        worlds.append(world)
        world.restarts_operators = False
        world.create_job()
        world.start_operator()
        await world.until_step(5)
        world.processes[0].crash("to be upgraded")
        job = world.store.find(JOB, world.namespace, world.name)
        # The planner's record has the layout that the status had before.
        before = read_status(job["status"]).model_dump(mode="json", exclude_none=True)
        world.store.update_status(JOB, {**job, "status": before})
        world.release += 1
        world.start_operator()
        await asyncio.sleep(120.0)
        pods = {pod["metadata"]["uid"] for pod in world.pods()}
        assert len(pods) == 2
        assert world.highest_step > 100, "ranks go on"
        gone = world.pods()[1]["metadata"]
        world.store.delete(POD, world.namespace, gone["name"], grace_s=0)
        await asyncio.sleep(1200.0)
        assert {pod["metadata"]["uid"] for pod in world.pods()} == pods - {gone["uid"]}, "none takes its place"
        after = dict(world.store.find(JOB, world.namespace, world.name)["status"])
        added = [c for c in after["conditions"] if c not in before["conditions"]]
        assert [c["type"] for c in added] == ["NeedsMigration"]
        assert {**after, "conditions": before["conditions"]} == before
        for process in world.processes:
            await process.stop()
        world.end_tasks()

    run_virtual(main(), clock)
    assert worlds[0].violations == []
