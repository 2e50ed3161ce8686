"""Small jobs: a fault at every event, and a second one at every event that follows. Here a few of them."""

from __future__ import annotations

import pytest

from simulation.schedule_runs.exhaustive import FAULTS, SCOPES, places, with_a_second
from tests.simulation.told import told


def test_every_event_of_every_scope_is_a_place_for_every_fault():
    found = places()
    assert len(found) > 500
    assert {place.scope for place in found} == set(range(len(SCOPES)))
    assert len(found) % len(FAULTS) == 0


def test_the_second_fault_strikes_in_the_run_that_the_first_one_has_led_to():
    place = next(place for place in places() if FAULTS[place.fault] == ("kill-pod", 0) and place.event == 12)
    outcomes = iter(with_a_second(place, stride=9))
    _, single = next(outcomes)
    struck = 0
    for schedule, double in outcomes:
        at = schedule.faults[1].event
        assert double.noted[:at] == single.noted[:at], schedule.name
        struck += sum("FAULT" in words for _, words in double.noted) == 2
    assert struck > 5


@pytest.mark.parametrize("scope", range(len(SCOPES)), ids=lambda scope: SCOPES[scope][0])
def test_a_small_job_survives_one_fault_and_a_second_one_here_and_there(scope):
    found = [place for place in places() if place.scope == scope]
    outcomes = list(with_a_second(found[len(found) // 3], stride=40))
    assert [len(schedule.faults) for schedule, _ in outcomes][:2] == [1, 2]
    for schedule, outcome in outcomes:
        assert not outcome.violations, f"{schedule.name}\n{told(outcome)}"
