"""The job's state as conditions."""

from __future__ import annotations

from tests.planning.world import World, job_spec, pending, recovered, running, verdict
from trainmaster_operator.planning.facts import foreign_conditions
from trainmaster_operator.planning.facts.job_state import Condition
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.job_conditions import TRUE_IN
from trainmaster_operator.planning.lifecycle import (
    checkpoint_conditions,
    elastic_resize,
    jobs_of_earlier_versions,
    operator_absence,
    revision,
)
from trainmaster_operator.planning.placement import gang_release
from trainmaster_operator.runtime.job_pass import error_conditions


def test_conditions_follow_the_phase_and_say_why() -> None:
    world = running()
    world.now += 10
    world.agent(2, verdict=verdict())
    world.write()
    by_type = {c.type: c for c in world.status.conditions}
    assert (by_type["Running"].status, by_type["Running"].reason) == ("False", "Recovering")
    assert (by_type["Recovering"].status, by_type["Recovering"].reason) == ("True", "Crash")
    assert by_type["Recovering"].message == "rank 2: it broke"
    assert by_type["Recovering"].lastTransitionTime == rfc3339(world.now)
    world.now += 1
    recovered(world, step=11, resumed=10)
    by_type = {c.type: c for c in world.status.conditions}
    assert (by_type["Running"].status, by_type["Recovering"].status) == ("True", "False")


def test_a_transition_time_moves_only_when_the_status_does() -> None:
    world = pending()
    created = world.status.conditions[0].lastTransitionTime
    world.now += 10
    for slot in world.slots:
        world.agent(slot)
    world.write()
    condition = next(c for c in world.status.conditions if c.type == "Running")
    assert (condition.reason, condition.lastTransitionTime) == ("Starting", created)


def test_conditions_of_others_are_kept() -> None:
    world = running()
    other = Condition(type="ReconcileError", status="True", reason="X")
    world.status.conditions.append(other)
    world.agent(2, verdict=verdict())
    kept = {c.type: c for c in world.write().status.conditions}["ReconcileError"]
    assert kept == other.model_copy(update={"observedGeneration": 1})


def test_a_condition_of_another_program_keeps_the_generation_that_it_was_set_for() -> None:
    world = running()
    other = Condition(type="example.com/Audited", status="True", reason="X", observedGeneration=7)
    world.status.conditions.append(other)
    world.agent(2, verdict=verdict())
    assert other in world.write().status.conditions


def test_the_types_of_all_our_conditions_are_known() -> None:
    constants = {
        getattr(module, name)
        for module, names in (
            (checkpoint_conditions, ("FAILED", "STALLED", "UNPROTECTED")),
            (elastic_resize, ("AS_WISHED",)),
            (error_conditions, ("RECONCILE_ERROR",)),
            (gang_release, ("SCHEDULED",)),
            (jobs_of_earlier_versions, ("NEEDS_MIGRATION",)),
            (operator_absence, ("ABSENT",)),
            (revision, ("PENDING", "LOST")),
        )
        for name in names
    }
    assert constants | set(TRUE_IN) == foreign_conditions.OWN
    assert len(foreign_conditions.OWN) <= foreign_conditions.MOST


def test_every_condition_has_a_reason_and_the_generation_that_it_was_found_for() -> None:
    world = running()
    world.agent(2, verdict=verdict())
    for condition in world.write().status.conditions:
        assert condition.reason, condition.type
        assert condition.observedGeneration == 1


def test_a_job_that_starts_does_not_know_yet_whether_its_pods_find_a_place() -> None:
    world = World(job_spec())
    world.write()
    scheduled = {c.type: c for c in world.status.conditions}["Scheduled"]
    assert (scheduled.status, scheduled.reason) == ("Unknown", "PodsStarting")
    assert scheduled.message.endswith("once all of them run and their agents are ready, the ranks start")
