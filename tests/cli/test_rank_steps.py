"""The steps of ranks in the live picture: those of the job, also where a script counts from 0 in each process."""

from __future__ import annotations

from typing import Any

from tests.cli.runs import status
from trainmaster_operator.cli.display.rank_steps import RankSteps
from trainmaster_operator.planning.facts.job_state import JobPhase


def slot(round: int, step: int, **changes: Any) -> dict[str, Any]:
    return {
        "round": round,
        "ranks": [{"rank": 0, "step": step}],
        "loaded": True,
        "resumed_step": None,
        "saved_before": 0,
        **changes,
    }


def steps(ranks: list[list[dict[str, Any]]]) -> list[int]:
    return [rank["step"] for its in ranks for rank in its]


def test_ranks_that_loaded_a_save_show_the_step_of_the_job() -> None:
    running = status(step=252, round=2, roundLastSave=100)
    assert steps(RankSteps().of_the_job(running, [slot(2, 152), slot(2, 151, loaded=False)])) == [252, 251]


def test_ranks_that_loaded_nothing_or_know_the_step_of_the_job_show_their_own_number() -> None:
    running = status(step=152, round=2, roundLastSave=100)
    assert steps(RankSteps().of_the_job(running, [slot(2, 152, loaded=False)])) == [152]
    assert steps(RankSteps().of_the_job(running, [slot(2, 152, resumed_step=100)])) == [152]


def test_a_save_that_was_reported_a_round_late_counts() -> None:
    running = status(step=152, round=3, roundLastSave=100, roundSavedFrom=100)
    assert steps(RankSteps().of_the_job(running, [slot(3, 2, saved_before=50)])) == [152]


def test_the_last_ranks_of_a_round_that_is_over_keep_their_steps() -> None:
    known = RankSteps()
    known.of_the_job(status(step=252, round=2, roundLastSave=100), [slot(2, 152)])
    over = status(JobPhase.RECOVERING, step=252, round=3, roundLastSave=250)
    assert steps(known.of_the_job(over, [slot(2, 153)])) == [253]
