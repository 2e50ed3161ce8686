"""Totals of a job: each failure counts once, whoever decides, and nothing that is forgotten elsewhere is lost here."""

from __future__ import annotations

import pytest

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState, Recovery, Rung, Totals
from trainmaster_operator.planning.lifecycle import job_totals, metric_categories
from trainmaster_operator.planning.lifecycle.recovery_clock import RECOVERIES


def recovery(number: int = 2, cause: str = "Crash", **fields: object) -> Recovery:
    at = f"2026-01-01T00:00:{number:02}.000Z"
    return Recovery.model_validate({"round": number, "cause": cause, "rung": Rung.IN_PLACE, "startedAt": at, **fields})


def after(status: JobState, **fields: object) -> JobState:
    """The status with these changes, and with its totals."""
    return job_totals.count(status, status.model_copy(update=fields))


def told(status: JobState) -> Totals:
    assert status.totals is not None
    return status.totals


def test_a_job_without_failures_has_no_totals_and_its_status_stays_the_same_object() -> None:
    status = JobState()
    assert job_totals.count(status, status) is status
    assert after(status, round=1).totals is None


def test_a_recovery_counts_when_it_begins_and_when_it_ends_and_never_again() -> None:
    begun = after(JobState(), recoveries=[recovery()])
    assert (told(begun).failures, told(begun).recoveries, told(begun).lostSteps) == ({"Crash": 1}, 0, 0)
    ended = after(begun, recoveries=[recovery(totalSeconds=0.5, lostSteps=3)])
    assert (told(ended).failures, told(ended).recoveries, told(ended).lostSteps) == ({"Crash": 1}, 1, 3)
    clocked = after(ended, recoveries=[recovery(totalSeconds=0.5, lostSteps=3, clock={"load": 1.0})])
    assert (told(clocked).failures, told(clocked).recoveries, told(clocked).lostSteps) == ({"Crash": 1}, 1, 3)


def test_totals_go_on_when_old_recoveries_are_forgotten() -> None:
    status = JobState()
    for number in range(RECOVERIES * 3):
        kept = [*status.recoveries, recovery(number, totalSeconds=0.1, lostSteps=2)][-RECOVERIES:]
        status = after(status, recoveries=kept)
    assert told(status).failures == {"Crash": RECOVERIES * 3}
    assert (told(status).recoveries, told(status).lostSteps) == (RECOVERIES * 3, RECOVERIES * 6)


def test_a_recovery_whose_round_agents_moved_is_the_same_one() -> None:
    begun = after(JobState(), recoveries=[recovery()])
    moved = after(begun, recoveries=[begun.recoveries[0].model_copy(update={"round": 7})])
    assert told(moved).failures == {"Crash": 1}


def test_a_failure_that_nothing_is_tried_after_counts_once() -> None:
    failure = Failure(cause="ConfigError", message="no such option", time="t")
    failed = after(JobState(), lastFailure=failure)
    assert told(failed).failures == {"ConfigError": 1}
    assert after(failed, lastFailure=failure.model_copy()) is not failed
    assert told(after(failed, lastFailure=failure.model_copy())).failures == {"ConfigError": 1}


def test_a_failure_with_its_recovery_counts_once() -> None:
    status = after(JobState(), recoveries=[recovery()], lastFailure=Failure(cause="Crash"))
    assert told(status).failures == {"Crash": 1}


def test_a_resize_is_no_failure_and_one_that_is_overtaken_is_no_recovery() -> None:
    status = after(JobState(), recoveries=[recovery(cause="Resized", totalSeconds=1.0)])
    assert status.totals is None
    status = after(status, recoveries=[recovery(3, totalSeconds=1.0, overtaken=True, lostSteps=9)])
    assert (told(status).failures, told(status).recoveries, told(status).lostSteps) == ({"Crash": 1}, 0, 0)


def test_a_status_that_keeps_its_recoveries_has_the_totals_that_copies_of_them_have() -> None:
    begun = after(JobState(), phase=JobPhase.RUNNING, accountedAt="2026-01-01T00:00:03.000Z", recoveries=[recovery()])
    ended = after(begun, recoveries=[recovery(totalSeconds=1.0, clock={"load": 0.4})], lost={"Crash": 1.0})
    later = {"accountedAt": "2026-01-01T00:01:00.000Z", "lost": {"Crash": 1.5}}
    kept = after(ended, **later)
    copied = after(ended, recoveries=[ended.recoveries[0].model_copy()], **later)
    assert kept == copied
    assert told(kept).told != told(ended).told
    assert after(kept) == kept


def test_phases_add_what_is_new_of_each_clock_and_no_invented_names() -> None:
    begun = after(JobState(), recoveries=[recovery(clock={"detect": 0.2, "decide": 0.1})])
    ended = after(begun, recoveries=[recovery(clock={"detect": 0.2, "decide": 0.1, "load": 1.0, "gremlins": 9.0})])
    slower = after(ended, recoveries=[recovery(clock={"detect": 0.2, "decide": 0.1, "load": 1.5, "gremlins": 9.0})])
    assert told(slower).phases == {"detect": 0.2, "decide": 0.1, "load": 1.5}


def test_causes_that_nobody_knows_are_one() -> None:
    status = JobState()
    for number, cause in enumerate(("Gremlins", "Elves", "DeadlineExceeded")):
        status = after(status, recoveries=[*status.recoveries, recovery(number, cause=cause)])
    assert told(status).failures == {"Other": 3}


def test_losses_by_category_add_up_to_what_was_lost() -> None:
    clock = {"detect": 1.0, "decide": 0.5, "schedule": 2.0, "load": 3.0, "first_step": 4.0}
    status = after(JobState(), recoveries=[recovery(clock=clock)])
    lost = {"Crash": 20.0, "NodeLost": 5.0, "Preempted": 6.0, "Checkpoint": 7.0, "Straggler": 8.0, "Evaluation": 9.0}
    found = job_totals.losses(status.model_copy(update={"lost": lost}))
    assert found == {
        "hardware": 5.0,
        "preemption": 6.0,
        "checkpoint": 10.0,
        "straggler": 8.0,
        "detection": 1.5,
        "queue": 2.0,
        "restart": 13.5,
        "other": 9.0,
    }
    assert sum(found.values()) == sum(lost.values())


def test_time_that_hardware_cost_stays_hardwares() -> None:
    status = after(JobState(), recoveries=[recovery(cause="NodeLost", clock={"detect": 10.0, "schedule": 5.0})])
    found = job_totals.losses(status.model_copy(update={"lost": {"NodeLost": 20.0}}))
    assert (found["hardware"], found["detection"], found["queue"]) == (20.0, 0.0, 0.0)


def test_clocks_that_overlap_never_make_a_category_negative() -> None:
    clocks = [recovery(number, clock={"detect": 30.0, "schedule": 30.0}) for number in (2, 3)]
    status = after(JobState(), recoveries=clocks)
    found = job_totals.losses(status.model_copy(update={"lost": {"Crash": 40.0}}))
    assert min(found.values()) >= 0
    assert sum(found.values()) == 40.0


def test_no_category_falls_when_agents_tell_the_clock_of_a_recovery_late() -> None:
    """A counter that falls is taken for one that began anew: all of it would count again."""

    def state(before: JobState, seconds: int, clock: dict[str, float], lost: float) -> JobState:
        return after(
            before,
            phase=JobPhase.RUNNING,
            firstStepAt="2026-01-01T00:00:00.000Z",
            accountedAt=f"2026-01-01T00:00:{seconds:02}.000Z",
            lost={"Crash": lost},
            recoveries=[recovery(totalSeconds=6.0, clock=clock)],
        )

    states = [JobState()]
    for seconds, clock, lost in (
        (8, {}, 6.0),  # its first step, of which no agent has told a clock yet
        (9, {"detect": 1.0}, 6.0),
        (10, {"detect": 3.0, "load": 1.0}, 6.5),  # and steps that are done again
        (19, {"detect": 3.0, "load": 1.0}, 7.0),
        (20, {"detect": 5.0, "load": 1.0}, 7.0),  # too late: this time has been told
    ):
        states.append(state(states[-1], seconds, clock, lost))
    told_losses = [job_totals.losses(status) for status in states]
    for category in metric_categories.LOSS_WORDS:
        values = [found[category] for found in told_losses]
        assert values == sorted(values), category
    assert told_losses[3] == {**dict.fromkeys(metric_categories.LOSS_WORDS, 0.0), "restart": 0.5}
    settled = {**dict.fromkeys(metric_categories.LOSS_WORDS, 0.0), "detection": 3.0, "checkpoint": 1.0, "restart": 3.0}
    assert told_losses[4] == told_losses[5] == settled


@pytest.mark.parametrize("cause", [*Cause, "Resized"])
def test_every_cause_has_a_category_of_losses(cause: str) -> None:
    name = cause.value if isinstance(cause, Cause) else cause
    assert metric_categories.LOSSES[name] in metric_categories.LOSS_WORDS
    assert metric_categories.FAILURES.get(name, "Other") in metric_categories.FAILURE_WORDS


def test_the_words_of_metrics_are_few() -> None:
    assert len(metric_categories.FAILURE_WORDS) <= 11
    assert metric_categories.grouped(
        {"decide": 1.0, "detect": 2.0}, metric_categories.PHASES, metric_categories.PHASE_WORDS
    ) == {
        "detect": 3.0,
        **dict.fromkeys(("schedule", "start", "rendezvous", "load", "first_step"), 0.0),
    }
