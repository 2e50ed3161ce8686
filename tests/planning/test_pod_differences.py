"""Pods whose ranks would not run the same do not train together, and no restart is tried."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, opened, pending, running, script_spec
from trainmaster.contract.wire import software_differences
from trainmaster_operator.planning.facts.job_state import JobPhase

SAME = {"command": "5f1c0a9b", "Python": "3.11.9", "torch": "2.13.0", "trainmaster": "0.1.0"}


def joined(world: World, **of_slot_3: Any) -> World:
    """Each agent has told its software; that of slot 3 has other versions."""
    for slot in world.slots:
        world.agent(slot, software={**SAME, **(of_slot_3 if slot == 3 else {})})
    return world


def failure(world: World) -> str:
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert (world.status.lastFailure.cause, world.status.restarts.total) == ("ConfigError", 0)
    return world.status.lastFailure.message


def test_a_job_whose_pods_have_different_versions_fails_before_its_first_round() -> None:
    world = joined(pending(script_spec(4)), torch="2.15.0")
    decision = world.write()
    assert failure(world) == (
        "the configuration is wrong, so a restart would not help: torch 2.13.0 in job-worker-0-0, 2.15.0 in "
        "job-worker-3-0: ranks that train together must have the same, so they do not start; use the same image for "
        "all pods"
    )
    assert (world.status.round, [event.reason for event in decision.events]) == (0, ["Failed"])


def test_every_name_that_differs_is_told() -> None:
    world = joined(pending(script_spec(4)), torch="2.15.0", Python="3.12.1")
    world.write()
    assert "Python 3.11.9 in job-worker-0-0, 3.12.1 in job-worker-3-0; torch 2.13.0 in job-worker-0-0, 2.15.0" in (
        failure(world)
    )


def test_pods_of_two_revisions_never_train_together_though_program_and_versions_are_the_same() -> None:
    world = joined(pending(script_spec(4)), revision="job-71")
    world.agent(0, software={**SAME, "revision": "job-6f"})
    world.write()
    assert "revision job-6f in job-worker-0-0, job-71 in job-worker-3-0: ranks that train" in failure(world)


def test_pods_that_tell_the_same_train() -> None:
    world = joined(pending(script_spec(4)))
    world.settle()
    assert (world.status.round, world.status.phase) == (1, JobPhase.STARTING)


def test_a_pod_that_comes_back_with_another_version_fails_the_job_before_its_round_opens() -> None:
    world = joined(running())
    world.pod(3, phase="Failed", exit_code=137)
    world.settle()
    restarts = world.status.restarts
    world.pod(3)
    world.agent(3, software={**SAME, "torch": "2.15.0"})
    world.settle()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.roundStore == ""
    assert world.status.restarts == restarts
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.pod == "job-worker-3-1"


def test_ranks_that_train_already_are_ended_when_a_pod_tells_late_that_it_differs() -> None:
    world = joined(opened(), torch="2.15.0")
    world.settle()
    assert world.status.phase is JobPhase.FAILED


def test_what_a_pod_does_not_tell_is_no_difference() -> None:
    world = joined(pending())
    world.agent(1, software={})
    world.agent(2, software={"trainmaster": "0.1.0"})
    world.settle()
    assert world.status.phase is JobPhase.STARTING


def test_a_spare_that_differs_fails_nothing_while_it_has_no_rank() -> None:
    world = joined(running(job_spec(workers={"replicas": 3, "spares": 1})), torch="2.15.0")
    world.settle()
    assert world.status.phase is JobPhase.RUNNING


def test_pods_are_compared_also_where_the_first_one_tells_nothing_of_what_differs() -> None:
    world = joined(pending(), torch="2.15.0")
    world.agent(0, software={"trainmaster": "0.1.0"})
    world.write()
    assert "torch 2.13.0 in job-worker-1-0, 2.15.0 in job-worker-3-0" in failure(world)


def test_the_first_pod_that_differs_is_named_with_the_first_that_it_differs_from() -> None:
    world = joined(pending())
    for slot, told in enumerate(({"torch": "2.13.0"}, {"Python": "3.11.9"}, {"torch": "2.13.0", "Python": "3.12.1"})):
        world.agent(slot, software=told)
    world.agent(3, software={"torch": "2.15.0"})
    world.write()
    assert "Python 3.11.9 in job-worker-1-0, 3.12.1 in job-worker-2-0: ranks" in failure(world)


def test_pods_that_each_tell_something_else_are_not_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    difference = software_differences.difference

    def count(*arguments: Any) -> str:
        nonlocal compared
        compared += 1
        return difference(*arguments)

    monkeypatch.setattr(software_differences, "difference", count)
    world = pending(job_spec(workers={"replicas": 60}))
    for slot in world.slots:
        world.agent(slot, software={**SAME, f"package {slot}": "1"})
    world.settle()
    assert world.status.phase is JobPhase.STARTING
    assert compared <= 60
