"""The job's state as conditions."""

from __future__ import annotations

from tests.planning.world import pending, recovered, running, verdict
from trainmaster_operator.planning.state import Condition
from trainmaster_operator.planning.times import rfc3339


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
    assert other in world.write().status.conditions
