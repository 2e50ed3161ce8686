"""The simulator finds bugs: each of these operators breaks a promise in a schedule that the right one gets through."""

from __future__ import annotations

import pytest

from trainmaster_operator.runtime.simulation.bugs import BUGS, find
from trainmaster_operator.runtime.simulation.minimise import kind_of, minimise
from trainmaster_operator.runtime.simulation.run import run_schedule
from trainmaster_operator.runtime.simulation.schedule import BadSchedule, Schedule

FOUND_BY = {
    "create a pod beside the old one": 5,
    "count a verdict of an older round": 2,
    "delete by name without uid": 33,
    "count the cascade": 24,
}
"""Seeds. `python -m trainmaster_operator.runtime.simulation bugs` hunts for all of them."""


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in FOUND_BY], ids=lambda bug: bug.name)
def test_a_bug_is_found(bug):
    assert find(bug, 1, first=FOUND_BY[bug.name]).violation


def test_what_is_found_is_made_smaller_and_can_be_replayed():
    bug = next(bug for bug in BUGS if bug.name == "create a pod beside the old one")

    def run(schedule):
        with bug.made() as policies:
            return run_schedule(schedule, policies)

    schedule = Schedule.of_seed(FOUND_BY[bug.name])
    small = minimise(schedule, run, tries=12)
    again = Schedule.from_json(small.to_json(violations=["some"]))
    assert again == small
    assert len(small.faults) < len(schedule.faults)
    assert kind_of(run(again).violations[0]) == kind_of(run(schedule).violations[0])


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "workload": {}}'])
def test_a_file_that_is_no_schedule_is_refused_in_words(text):
    with pytest.raises(BadSchedule):
        Schedule.from_json(text)


def test_a_fault_that_is_not_known_is_refused_by_name():
    text = Schedule.of_seed(1).to_json().replace('"kind": "', '"kind": "old-')
    with pytest.raises(BadSchedule, match="no fault is called old-"):
        Schedule.from_json(text)
