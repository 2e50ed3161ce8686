"""Clusters whose nodes come late: no job waits for ever, and no gang is given back while nodes come."""

from __future__ import annotations

import pytest

from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.simulated_run import run_growing_seed, run_schedule
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
