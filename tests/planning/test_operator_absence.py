"""What a leader says of the time before it in which nobody led."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.world import World, running
from trainmaster_operator.planning.facts.job_state import Condition, JobState
from trainmaster_operator.planning.facts.observation import OperatorAbsence
from trainmaster_operator.planning.lifecycle.operator_absence import ABSENT
from trainmaster_operator.planning.plan import plan


def told(status: JobState) -> list[Condition]:
    return [condition for condition in status.conditions if condition.type == ABSENT]


def looked_at(world: World, status: JobState, epoch: int, seconds: float) -> JobState:
    absence = OperatorAbsence(1_800_000_000.0, 1_800_000_000.0 + seconds)
    observed = replace(world.observed(), epoch=epoch, absence=absence)
    return plan(world.spec, status, observed, world.now).status


def test_the_next_leader_tells_once_for_how_long_nobody_led() -> None:
    world = running()
    first = looked_at(world, world.status, world.epoch + 1, 327.0)
    (condition,) = told(first)
    assert (condition.status, condition.reason) == ("False", "OperatorReturned")
    assert condition.message.startswith("no operator led from 2027-01-15T08:00:00Z to 2027-01-15T08:05:27Z, for 5m27s")
    assert looked_at(world, first, world.epoch + 1, 7200.0) == first, "this leader has said it"
    later = looked_at(world, first, world.epoch + 2, 7200.0)
    assert ["2h" in condition.message for condition in told(later)] == [True]


@pytest.mark.parametrize("seconds", [0.5, 20.0, 29.0])
def test_a_change_of_leaders_is_nothing_to_tell(seconds: float) -> None:
    world = running()
    assert told(looked_at(world, world.status, world.epoch + 1, seconds)) == []


def test_a_job_that_no_leader_knew_before_has_missed_nothing() -> None:
    world = World()
    assert told(looked_at(world, world.status, world.epoch + 1, 3600.0)) == []
