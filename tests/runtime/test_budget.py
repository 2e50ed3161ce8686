"""Progress is written seldom enough, and nobody waits for a turn in vain."""

from __future__ import annotations

import pytest

from trainmaster_operator.runtime.job_pass.status_write_budget import ProgressBudget


class Time:
    def __init__(self) -> None:
        self.at = 100.0

    def monotonic(self) -> float:
        return self.at

    def now(self) -> float:
        return self.at


def test_a_job_writes_at_most_once_in_its_interval() -> None:
    time = Time()
    budget = ProgressBudget(time, interval_s=0.5)
    assert budget.wait_s("job") == 0
    budget.spend("job", counts=True)
    time.at += 0.2
    assert budget.wait_s("job") == pytest.approx(0.3)
    time.at += 0.3
    assert budget.wait_s("job") == pytest.approx(0)


def test_any_write_of_a_status_begins_the_interval_anew() -> None:
    time = Time()
    budget = ProgressBudget(time, interval_s=0.5)
    budget.spend("job", counts=False)
    assert budget.wait_s("job") == pytest.approx(0.5)


def test_each_job_of_a_crowd_has_a_turn_of_its_own() -> None:
    time = Time()
    budget = ProgressBudget(time, rate=20.0, burst=40.0)
    waits = [budget.wait_s(number) for number in range(100)]
    assert waits[:40] == [0.0] * 40
    assert waits[40:43] == pytest.approx([0.05, 0.1, 0.15])
    assert waits[99] == pytest.approx(3.0)
    assert budget.wait_s(99) == pytest.approx(3.0)  # asking again costs no second turn
    time.at += 3.0
    assert budget.wait_s(99) == pytest.approx(0.0)
    budget.spend(99, counts=True)
    assert budget.wait_s(99) == pytest.approx(0.5)


def test_a_turn_that_was_not_used_is_still_there() -> None:
    time = Time()
    budget = ProgressBudget(time, interval_s=0.5, rate=1.0, burst=1.0)
    assert [budget.wait_s("a"), budget.wait_s("b")] == pytest.approx([0.0, 1.0])
    budget.spend("b", counts=False)  # its progress went along with something else
    time.at += 10.0
    assert budget.wait_s("b") == 0


def test_rest_saves_no_more_than_a_burst() -> None:
    time = Time()
    budget = ProgressBudget(time, rate=10.0, burst=3.0)
    time.at += 3600
    assert [budget.wait_s(number) for number in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])


def test_a_job_that_is_gone_leaves_nothing_behind() -> None:
    budget = ProgressBudget(Time(), rate=1.0, burst=1.0)
    budget.wait_s("other")
    assert budget.wait_s("job") > 0
    budget.spend("job", counts=False)
    budget.forget("job")
    assert not budget._turns.keys() & {"job"}
    assert not budget._written_at


def test_a_writer_that_waits_is_told_the_seconds_until_its_turn() -> None:
    time = Time()
    budget = ProgressBudget(time, rate=1.0, burst=1.0)
    budget.wait_s("a")
    assert (budget.turn_s("a"), budget.turn_s("b")) == (0.0, 0.0)
    budget.wait_s("b")
    assert budget.turn_s("b") == pytest.approx(1.0)
    time.at += 0.75
    assert budget.turn_s("b") == pytest.approx(0.25)
    budget.spend("b", counts=True)
    assert budget.turn_s("b") == 0.0
