"""Clusters whose nodes come late: no job waits for ever, and no gang is given back while nodes come."""

from __future__ import annotations

import asyncio

import pytest

from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.simulated_run import run_growing_seed, run_schedule, simulate
from simulation.virtual.autoscaler import Growth
from simulation.virtual.virtual_world import Workload, World
from tests.simulation.told import told

BATCHES = 6
SEEDS_PER_BATCH = 10


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_job_gets_through_on_a_cluster_that_grows(batch: int) -> None:
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        outcome = run_growing_seed(seed)
        assert not outcome.violations, f"growing seed {seed}\n{told(outcome)}"


def test_a_schedule_of_a_cluster_that_grows_can_be_kept_and_replayed() -> None:
    schedule = Schedule.of_growing_seed(3)
    again = Schedule.from_json(schedule.to_json())
    assert again == schedule
    assert run_schedule(again).log == run_schedule(schedule).log


def test_the_schedules_cover_what_such_clusters_do() -> None:
    """Orders in vain, another job's places, gates with a deadline, and both rights of the operator."""
    growths = [schedule.workload.growth for seed in range(60) if (schedule := Schedule.of_growing_seed(seed))]
    seen = [growth for growth in growths if growth is not None]
    assert len(seen) == 60
    assert any(growth.fails == 1.0 and growth.rival for growth in seen)
    assert any(growth.pending_s is not None and growth.gated_s > growth.pending_s for growth in seen)
    for right in ("may_taint", "may_list"):
        assert {getattr(growth, right) for growth in seen} == {True, False}


def test_a_pod_that_a_dead_node_ignores_gives_no_places_back() -> None:
    """In this schedule a pod is bound to a node that has died, and that pod alone is replaced while nodes come."""
    outcome = run_growing_seed(3774)
    assert any("node is ordered" in line for line in outcome.log)
    assert not outcome.violations, told(outcome)


def test_a_node_that_the_cloud_took_and_returned_is_not_held_by_the_other_job_for_ever() -> None:
    outcome = run_growing_seed(5242)
    assert any("reclaim-node" in line for line in outcome.log)
    assert any("the other job is done" in line for line in outcome.log)
    assert not outcome.violations, told(outcome)


def test_nobody_tells_of_the_pod_of_a_node_that_the_cloud_took_until_it_is_collected() -> None:
    phases: list[str] = []

    async def reclaim(world: World) -> None:
        assert world.cluster is not None
        await world.until_step(3)
        agent = world.kubelet.living()[0]
        world.cluster.reclaim(agent.node)
        await asyncio.sleep(5.0)
        phases.extend(pod["status"]["phase"] for pod in world.pods() if pod["metadata"]["name"] == agent.pod)

    workload = Workload(replicas=2, steps=8, save_every=3, growth=Growth(nodes=3, late_s=(30.0, 31.0)))
    outcome = simulate("reclaimed", workload, reclaim, longest_s=3600.0)
    assert not outcome.violations, told(outcome)
    assert phases == ["Running"]
    assert [recovery.cause for recovery in outcome.status.recoveries] == ["AgentLost"]
