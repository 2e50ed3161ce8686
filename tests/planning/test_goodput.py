"""What share of the time went into steps that count, and what the rest was lost to."""

from __future__ import annotations

import pytest

from tests.planning.world import NOW, World, job_spec, opened, recovered, running, script_spec, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.lifecycle.goodput import Account


def step_to(world: World, step: int, seconds: float, **agent: object) -> None:
    world.now += seconds
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=step), **agent)
    world.settle()


def fail(world: World, cause: Cause = Cause.CRASH, rank: int = 2) -> None:
    world.agent(rank, verdict=verdict(rank, cause, round=world.status.round))
    world.settle()


def test_a_run_without_trouble_loses_nothing_since_its_first_step() -> None:
    """Waiting for pods and starting ranks come before the first step: they are no loss of goodput."""
    world = opened()
    world.now += 500
    recovered(world, step=1, resumed=0)
    step_to(world, 11, 20)
    assert (world.status.goodput, world.status.usefulSeconds, world.status.lost) == ("1.00", 20.0, {})


def test_down_time_and_steps_that_are_done_twice_are_lost_to_the_failure() -> None:
    world = running(step=10)
    step_to(world, 20, 10)
    world.now += 3
    fail(world, Cause.NODE_LOST)
    world.now += 4
    recovered(world, step=16, resumed=15)  # the first step ends the down time
    step_to(world, 20, 4)  # done before
    step_to(world, 30, 10)
    assert world.status.lost == {"NodeLost": pytest.approx(3 + 4 + 4)}
    assert world.status.usefulSeconds == pytest.approx(20)
    assert world.status.goodput == "0.65"


def test_an_account_that_spans_old_and_new_steps_is_shared_between_them() -> None:
    world = running(step=20)
    fail(world)
    recovered(world, step=16, resumed=15)
    step_to(world, 26, 10)  # 17 to 20 again, 21 to 26 for the first time
    assert world.status.usefulSeconds == pytest.approx(6)
    assert world.status.lost["Crash"] == pytest.approx(4)


def test_failures_that_overlap_lose_each_second_once() -> None:
    world = running(step=10)
    fail(world, Cause.CRASH)
    world.now += 3
    for slot in world.slots:
        world.obey(slot)
    fail(world, Cause.HARDWARE_FAULT, rank=1)
    world.now += 4
    recovered(world, step=11, resumed=10)
    assert [r.totalSeconds for r in world.status.recoveries] == [7.0, 4.0]
    assert world.status.lost == {"Crash": pytest.approx(3), "HardwareFault": pytest.approx(4)}


def test_saving_and_evaluating_are_no_steps() -> None:
    world = running(step=10)
    step_to(world, 20, 10, pauses={"save": [1, 1.5, 1.5, 1.5], "step": [10, 0.8, 1.0, 8.5]})
    step_to(world, 30, 20, pauses={"save": [2, 1.5, 2.0, 3.5], "eval": [1, 8.0, 8.0, 8.0]})
    assert world.status.lost == {"Checkpoint": pytest.approx(3.5), "Evaluation": pytest.approx(8)}
    assert world.status.usefulSeconds == pytest.approx(30 - 3.5 - 8)


def test_pauses_of_a_new_round_are_counted_from_its_start() -> None:
    world = running(step=10)
    step_to(world, 20, 10, pauses={"save": [9, 1.0, 1.0, 9.0]})
    fail(world)
    recovered(world, step=21, resumed=20)
    step_to(world, 22, 1)
    step_to(world, 32, 10, pauses={"save": [1, 2.0, 2.0, 2.0]})
    assert world.status.lost["Checkpoint"] == pytest.approx(9 + 2)


def test_the_time_in_which_ranks_hung_is_lost_though_the_job_then_fails() -> None:
    hangs = {"hang": {"limitSeconds": 30}, "rules": [{"causes": ["Hang"], "action": "Fail"}]}
    world = running(job_spec(recovery=hangs), step=10)
    step_to(world, 20, 10)
    for wait in (30.0, 10.0):
        world.now += wait
        for slot in world.slots:
            world.agent(slot, ranks=world.ranks(slot, step=20, silent_s=wait + 20, still_s=wait))
        world.write()
    assert (world.status.phase, world.status.lost) == (JobPhase.FAILED, {"Hang": pytest.approx(40)})
    assert world.status.goodput == "0.20"


def test_the_last_steps_of_a_job_that_fails_are_useful_though_they_are_reported_with_the_failure() -> None:
    world = running(step=10)
    world.now += 10
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=20))
    fail(world, Cause.DATA_ERROR)
    assert (world.status.phase, world.status.usefulSeconds) == (JobPhase.FAILED, pytest.approx(10))
    assert (world.status.lost, world.status.goodput) == ({}, "1.00")


def test_a_failure_before_the_first_step_after_another_one_loses_only_the_time_since_then() -> None:
    world = running(step=10)
    fail(world, Cause.CRASH)
    world.now += 3
    for slot in world.slots:
        world.obey(slot)
    world.now += 4
    world.agent(1, verdict=verdict(1, Cause.DATA_ERROR, round=world.status.round), verdict_age_s=1.0)
    world.settle()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lost == {"Crash": pytest.approx(6), "DataError": pytest.approx(1)}


def test_a_restarted_operator_counts_on() -> None:
    world = running(step=10)
    step_to(world, 20, 10)
    world.epoch += 1
    world.now += 5
    step_to(world, 30, 5)
    assert (world.status.usefulSeconds, world.status.goodput) == (20.0, "1.00")


def test_the_account_goes_on_after_a_resume_and_leaves_out_the_time_of_the_suspend() -> None:
    world = running(step=10)
    step_to(world, 20, 10)
    fail(world)
    world.now += 4
    recovered(world, step=21, resumed=20)
    first, lost = world.status.firstStepAt, world.status.lost["Crash"]
    world.status.phase, world.status.startTime = JobPhase.STARTING, "2044-01-01T00:00:00.000Z"
    world.now = 2_335_219_200.0 + 6
    step_to(world, 22, 1)
    assert world.status.firstStepAt == first
    assert (world.status.lost, world.status.usefulSeconds) == ({"Crash": lost, "Resume": 7.0}, pytest.approx(10.0))
    step_to(world, 32, 10)
    assert world.status.usefulSeconds == pytest.approx(20.0)
    assert world.status.goodput == f"{20 / (20 + lost + 7):.2f}"


def test_steps_that_a_resumed_run_does_again_are_lost_to_the_resume_and_to_no_earlier_failure() -> None:
    world = running(step=10)
    fail(world)
    recovered(world, step=11, resumed=10)
    step_to(world, 20, 9)
    crash = world.status.lost.get("Crash", 0.0)
    world.status.phase, world.status.startTime = JobPhase.STARTING, "2044-01-01T00:00:00.000Z"
    world.now = 2_335_219_200.0 + 6
    step_to(world, 16, 1, resumed_step=15)
    step_to(world, 20, 4, resumed_step=15)
    assert world.status.lost.get("Crash", 0.0) == crash
    assert world.status.lost["Resume"] == pytest.approx(7 + 4)


def test_steps_before_the_first_one_of_a_resumed_run_is_known_are_not_counted() -> None:
    """A stop may be asked for that early; the time of the suspend must not become useful by it."""
    world = running(step=10)
    step_to(world, 20, 10)
    world.status.phase, world.status.startTime = JobPhase.SUSPENDING, "2044-01-01T00:00:00.000Z"
    world.now = 2_335_219_200.0 + 6
    step_to(world, 22, 1)
    assert world.status.usefulSeconds == pytest.approx(10.0)


def test_a_save_that_is_reported_before_the_next_step_is_no_step() -> None:
    """A script reports its save when torch.save returns, and its next step some seconds later."""
    world = running(script_spec(), step=10)
    saved = {"last_save": 10, "pauses": {"save": [1, 20.0, 20.0, 20.0]}}
    step_to(world, 10, 20, **saved)
    assert world.status.progress.lastSave == 10
    step_to(world, 11, 5, **saved)
    assert world.status.lost == {"Checkpoint": pytest.approx(20)}
    assert world.status.usefulSeconds == pytest.approx(5)


def test_pauses_of_several_ranks_at_once_take_no_longer_than_the_time_that_passed() -> None:
    world = running(step=10)
    step_to(world, 20, 10, pauses={"save": [1, 10.0, 10.0, 10.0], "eval": [1, 10.0, 10.0, 10.0]})
    assert world.status.lost == {"Checkpoint": pytest.approx(5), "Evaluation": pytest.approx(5)}
    assert world.status.usefulSeconds == 0.0


def test_a_failure_that_began_before_the_ones_found_earlier_loses_no_second_twice() -> None:
    account = Account(running(step=10).status)
    began = NOW + 5
    failures = [("Crash", began + 1), ("Hang", began + 11), ("AgentLost", began - 7)]
    account.stand_still(began + 20, [(cause, rfc3339(at)) for cause, at in failures])
    assert sum(account.fields()["lost"].values()) == pytest.approx(20)
