"""The simulator finds bugs: each of these operators breaks a promise in a schedule that the right one gets through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulation.faults.simulated_fault import Fault
from simulation.schedule_runs.bug_search import find
from simulation.schedule_runs.minimise import kind_of, minimise
from simulation.schedule_runs.schedule import BadSchedule, Schedule
from simulation.schedule_runs.seeded_bugs import BUGS
from simulation.schedule_runs.simulated_run import run_schedule
from simulation.virtual.virtual_world import Workload

FOUND_WITHIN = {
    "create a pod beside the old one": 10,
    "count a verdict of an older round": 10,
    "delete by name without uid": 10,
    "ignore the leader epoch": 50,
    "keep a refusal from people": 50,
    "give up after a refusal": 50,
    "forget the timer": 50,
    "build a pod from the live spec": 50,
    "resume from an incomplete checkpoint": 50,
    "count the cascade": 50,
    "count a restart twice": 50,
    "report a step that is not known": 50,
    "reuse a store": 400,
    "forget to reset hang state": 400,
    "overwrite on conflict": 200,
    "count in memory": 50,
    "forget a spending at restart": 50,
    "act before intent": 50,
    "keep away from nodes for ever": 50,
    "give places back by the clock alone": 50,
    "believe an autoscaler for ever": 50,
    "count the time of gates": 50,
}
"""So many random schedules, from seed 0 on, or runs of a scenario of the crash matrix.
`python -m simulation bugs` tells the exact numbers, which change with the operator."""

TABLE = Path(__file__).parents[2] / "docs" / "simulation.md"


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in FOUND_WITHIN], ids=lambda bug: bug.name)
def test_a_bug_is_found(bug):
    found = find(bug, FOUND_WITHIN[bug.name])
    assert found.violation
    assert found.schedules <= FOUND_WITHIN[bug.name]


@pytest.mark.parametrize("before", ["late-writes", "pause-operator"])
def test_a_pod_beside_another_is_seen_after_writes_were_late_too(before):
    bug = next(bug for bug in BUGS if bug.name == "create a pod beside the old one")
    faults = (Fault(before, 0, 0.0, 0.5, number=0), Fault("delete-pod", 20, 0.0, 1.0, number=0))
    with bug.made() as policies:
        outcome = run_schedule(Schedule("late before", Workload(), faults), policies)
    assert any("was created beside" in violation for violation in outcome.violations)


def test_the_docs_tell_within_how_many_schedules():
    rows = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (.+) \|$", TABLE.read_text(), re.MULTILINE)
    where = {
        bug.name: f"crashes: {bug.scenario}"
        if bug.scenario
        else "clusters that grow"
        if bug.growing
        else "random schedules"
        for bug in BUGS
    }
    assert rows == [(name, str(within), where[name]) for name, within in FOUND_WITHIN.items()]
    assert len(rows) >= 10


def test_what_is_found_is_made_smaller_and_can_be_replayed():
    bug = next(bug for bug in BUGS if bug.name == "create a pod beside the old one")

    def run(schedule):
        with bug.made() as policies:
            return run_schedule(schedule, policies)

    schedule = Schedule.of_seed(find(bug, FOUND_WITHIN[bug.name]).schedules - 1)
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


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"replicas": 3', '"replicas": "three"', 'replicas is "three": int is expected'),
        ('"step": 7', '"step": 7.5', "step is 7.5: int is expected"),
        ('"seconds": 0.0', '"seconds": null', "seconds is null: float is expected"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(old, new, words):
    text = (Path(__file__).parent / "a-rank-ends-with-exit-code-3.json").read_text()
    assert old in text
    with pytest.raises(BadSchedule, match=words):
        Schedule.from_json(text.replace(old, new))
