"""What an agent remembers of when its rounds trained."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell.ranks import round_history
from trainmaster.agent.shell.ranks.round_history import RoundHistory
from trainmaster.contract.wire import Assignment, Progress, StoreAddress
from trainmaster.contract.wire.training_times import KEPT

S = 1_000_000_000


def assignment(round: int, minor: int) -> Assignment:
    return Assignment(round, 2, 0, 2, 0, 1, StoreAddress("10.0.0.1", 1), 0, minor=minor)


def begun_with(restart_count: int) -> Assignment:
    return Assignment(restart_count + 1, 2, 0, 2, 0, 1, StoreAddress("10.0.0.1", 1), restart_count)


def of_round(number: int, *records: Progress) -> Any:
    ranks = [SimpleNamespace(progress=lambda record=record: record) for record in records]
    return SimpleNamespace(number=number, ranks=ranks, resumed_tier="ram")


def test_ages_are_those_at_the_report() -> None:
    first = Progress(first_step_ns=12 * S, beat_ns=20 * S, step=9, resumed_step=4, save_total_ns=S)
    second = Progress(first_step_ns=11 * S, beat_ns=19 * S, step=8, resumed_step=4, eval_total_ns=2 * S)
    history = RoundHistory()
    history.begin(assignment(2, minor=1), of_round(1, first, second))
    past, current = history.list_rounds(of_round(2, Progress(beat_ns=25 * S)), 30 * S)
    assert (past.round, past.first_step_s, past.last_sign_s) == (1, 19.0, 10.0)
    assert (past.step, past.resumed_step, past.resumed_tier) == (9, 4, "ram")
    assert (past.saved_s, past.evaluated_s) == (1.0, 2.0)
    assert (current.round, current.first_step_s, current.last_sign_s, current.resumed_step) == (2, None, 5.0, None)


def test_a_round_of_a_leaders_own_begins_a_new_history() -> None:
    history = RoundHistory()
    history.begin(assignment(2, minor=1), of_round(1, Progress()))
    history.begin(assignment(3, minor=0), of_round(2, Progress()))
    assert [told.round for told in history.list_rounds(of_round(3, Progress()), 0)] == [3]


def test_rounds_that_a_leader_has_taken_over_are_forgotten() -> None:
    history = RoundHistory()
    for number in (1, 2):
        history.begin(assignment(number + 1, minor=number), of_round(number, Progress()))
    history.confirm(assignment(2, minor=1))
    assert [told.round for told in history.list_rounds(of_round(3, Progress()), 0)] == [2, 3]


@pytest.mark.parametrize("rounds", [KEPT - 1, 50])
def test_it_has_a_fixed_size_however_many_rounds_there_were(rounds: int) -> None:
    history = RoundHistory()
    for number in range(1, rounds + 1):
        history.begin(assignment(number + 1, minor=number), of_round(number, Progress()))
    told = history.list_rounds(of_round(rounds + 1, Progress()), 0)
    assert [each.round for each in told] == list(range(rounds + 2 - KEPT, rounds + 2))


def test_the_last_save_of_the_round_before_is_told_also_if_it_came_after_that_rounds_last_report() -> None:
    record = Progress(step=7)
    history = RoundHistory()
    history.retire(of_round(1, Progress(step=7), record))
    record.last_save = 5  # its rank is about to end
    assert [history.saved_before(number) for number in (1, 2, 3)] == [0, 5, 0]


def test_ranks_are_told_when_the_job_first_stepped_by_an_agent_that_was_there() -> None:
    history, began_at, began_ns = RoundHistory(), time.time(), time.monotonic_ns()
    history.begin(begun_with(0), None)
    assert history.environment() == {}
    history.retire(of_round(1, Progress()))  # it ended before a step
    assert history.environment() == {}
    for later_s in (7, 70):
        history.retire(of_round(2, Progress(first_step_ns=began_ns + later_s * S), Progress()))
        told = float(history.environment()["TRAINMASTER_FIRST_STEP_AT"])
        assert told == pytest.approx(began_at + 7, abs=0.5)


def test_an_agent_that_came_later_does_not_tell_when_the_job_first_stepped() -> None:
    history = RoundHistory()
    history.begin(begun_with(1), None)
    history.retire(of_round(2, Progress(first_step_ns=S)))
    assert history.environment() == {}


@pytest.mark.parametrize(("set_by_s", "told"), [(3600.0, 1000.0), (-400.0, 600.0)])
def test_no_save_of_the_job_is_older_than_its_first_step_although_the_clock_was_set(
    set_by_s: float, told: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(round_history, "time", SimpleNamespace(time=lambda: clock.now, monotonic_ns=lambda: 50 * S))
    history, round = RoundHistory(), of_round(1, Progress(first_step_ns=50 * S))
    history.begin(begun_with(0), None)
    history.list_rounds(round, 50 * S)  # a report
    clock.now += set_by_s
    history.retire(round)
    history.retire(of_round(2, Progress(first_step_ns=1)))  # its first step is not the job's
    assert history.environment() == {"TRAINMASTER_FIRST_STEP_AT": f"{told:.3f}"}
