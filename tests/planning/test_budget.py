"""How often a failure is answered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.planning.world import NOW
from trainmaster_operator.api.recovery_spec import BudgetSpec
from trainmaster_operator.planning.facts.job_state import Rung, Spent
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.failure import failure_budget

LIMITS = BudgetSpec(inPlace=2, pod=1, full=1, windowSeconds=100, perCause=2)


def spent(rung: Rung, age_s: float = 0.0, cause: str = "Crash", step: int = 0) -> Spent:
    return Spent(time=rfc3339(NOW - age_s), rung=rung, cause=cause, step=step)


def affordable(*entries: Spent, cause: str = "Crash", floor: Rung = Rung.IN_PLACE, step: int = 10) -> Rung:
    return failure_budget.affordable(LIMITS, entries, cause, floor, step, NOW)


def test_the_lowest_rung_that_the_budget_allows_is_taken() -> None:
    in_place, pod, full = spent(Rung.IN_PLACE), spent(Rung.POD), spent(Rung.FULL)
    assert affordable() is Rung.IN_PLACE
    assert affordable(in_place) is Rung.IN_PLACE
    assert affordable(in_place, in_place) is Rung.POD
    assert affordable(in_place, in_place, pod) is Rung.FULL
    assert affordable(in_place, in_place, pod, full) is Rung.FREE
    assert affordable(floor=Rung.POD) is Rung.POD


def test_a_restart_older_than_the_window_no_longer_counts() -> None:
    assert affordable(spent(Rung.IN_PLACE, 99), spent(Rung.IN_PLACE, 101)) is Rung.IN_PLACE
    assert affordable(spent(Rung.IN_PLACE, 99), spent(Rung.IN_PLACE, 99)) is Rung.POD


def test_a_cause_without_progress_takes_the_next_rung_whatever_its_age() -> None:
    stuck = [spent(Rung.IN_PLACE, 1000, step=10), spent(Rung.IN_PLACE, 500, step=10)]
    assert affordable(*stuck) is Rung.POD
    assert affordable(*stuck, cause="Hang") is Rung.IN_PLACE
    assert affordable(*stuck, step=11) is Rung.IN_PLACE
    assert affordable(*failure_budget.cleared(stuck)) is Rung.IN_PLACE


def test_free_restarts_count_nothing() -> None:
    assert affordable(*[spent(Rung.FREE)] * 20) is Rung.IN_PLACE


def test_what_can_no_longer_count_is_forgotten() -> None:
    old = [spent(Rung.IN_PLACE, 500, step=3), spent(Rung.FREE, 1, step=3), spent(Rung.POD, 50, step=3)]
    kept = failure_budget.charge(LIMITS, old, Rung.IN_PLACE, "Crash", 10, NOW)
    assert [(s.rung, s.step) for s in kept] == [(Rung.POD, 3), (Rung.IN_PLACE, 10)]


def test_restarts_that_were_merged_leave_the_window_like_any_other() -> None:
    """Of a failure every 100 s, 36 count in an hour, however long the job has run."""
    limits = BudgetSpec(inPlace=60, windowSeconds=3600, perCause=100)
    entries: list[Spent] = []
    for number in range(1000):
        now = NOW + 100 * number
        entries = failure_budget.charge(limits, entries, Rung.IN_PLACE, "Crash", number, now)
        assert failure_budget.left(limits, entries, "Crash", Rung.IN_PLACE, number + 1, now + 1) >= 20
        assert failure_budget.without_progress(entries, "Crash", Rung.IN_PLACE, number) == 1


def test_a_merge_does_not_move_restarts_to_the_present_step_from_before_it() -> None:
    """Earlier releases recorded restarts by the agents with a step below that of the entry before."""
    limits = BudgetSpec(inPlace=60, windowSeconds=3600, perCause=100)
    entries = [spent(Rung.IN_PLACE, 100, step=step) for step in (50, *range(failure_budget.ENTRIES - 1))]
    kept = failure_budget.charge(limits, entries, Rung.IN_PLACE, "Crash", 50, NOW)
    assert failure_budget.without_progress(kept, "Crash", Rung.IN_PLACE, 50) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from([Rung.IN_PLACE, Rung.POD]), st.sampled_from("ab"), st.integers(0, 3)), max_size=90
    )
)
def test_many_restarts_are_merged_and_none_is_forgotten(history: list[tuple[Rung, str, int]]) -> None:
    limits = BudgetSpec(windowSeconds=10**9)
    entries: list[Spent] = []
    step = 0
    for number, (rung, cause, more) in enumerate(history):
        step += more
        entries = failure_budget.charge(limits, entries, rung, cause, step, NOW + number)
        assert len(entries) <= failure_budget.ENTRIES
    for rung in (Rung.IN_PLACE, Rung.POD):
        assert sum(s.count for s in entries if s.rung is rung) == sum(1 for r, _, _ in history if r is rung)
        for cause in "ab":
            at_last_step = 0
            step = 0
            for r, c, more in history:
                step += more
                at_last_step = 0 if more else at_last_step
                at_last_step += (r, c) == (rung, cause)
            assert failure_budget.without_progress(entries, cause, rung, step) >= at_last_step
