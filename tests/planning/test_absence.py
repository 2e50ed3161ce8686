"""What a leader makes of the minutes in which nobody listened."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.planning.test_grant import ahead, granted
from tests.planning.world import World, job_spec, opened, running, verdict
from trainmaster.contract.wire import Trained
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import Decision

AWAY_S = 261.0


def step_to(world: World, step: int, seconds: float) -> None:
    world.now += seconds
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=step))
    world.settle()


def tell(world: World, *trained: Trained, **agent: object) -> None:
    """All agents tell when their rounds trained."""
    for slot in world.slots:
        world.agent(slot, trained=trained, **agent)


def come_back(world: World, *trained: Trained, opened: int) -> Decision:
    """A leader after AWAY_S, in which the agents opened `opened` rounds; the last one runs."""
    world.now += AWAY_S
    ages = {told.round: told.first_step_s or 0.0 for told in trained}
    rounds = [granted(1 + n, rank=n, number=900 + n, age_s=ages[1 + n] + 0.18) for n in range(1, opened + 1)]
    known = tuple(replace(each, verdict=replace(each.verdict, age_s=0.05, step=30)) for each in rounds)
    for slot in world.members:
        ahead(world, slot, 1 + opened, opened, known if slot == 0 else ())
        world.agent(slot, ranks=world.ranks(slot, step=trained[-1].step), resumed_step=trained[-1].resumed_step)
    tell(world, *trained)
    return world.write()


def test_a_recovery_that_no_leader_saw_took_as_long_as_it_did() -> None:
    world = running(step=10)
    step_to(world, 20, 10)
    decision = come_back(
        world,
        Trained(1, first_step_s=300.0, last_sign_s=250.23, step=30, resumed_step=0),
        Trained(2, first_step_s=250.0, last_sign_s=0.5, step=277, resumed_step=28, resumed_tier="ram"),
        opened=1,
    )
    (recovery,) = world.status.recoveries
    assert (recovery.totalSeconds, recovery.resumedStep, recovery.lostSteps) == (pytest.approx(0.23, abs=0.002), 28, 2)
    assert recovery.tier == "ram"
    assert "by themselves in 0.23 s" in decision.events[0].message
    assert world.status.phase is JobPhase.RUNNING
    world.settle()
    # Of 248 steps in 249.5 s, one was done before; the first step of all ended the standstill.
    again = 249.5 * 1 / 248
    assert world.status.lost == {"Crash": pytest.approx(0.23 + again, abs=0.01)}
    assert world.status.usefulSeconds == pytest.approx(10 + 10.77 + 249.5 - again, abs=0.01)
    assert world.status.goodput == "1.00"


def test_a_step_after_the_return_is_counted_once() -> None:
    world = running(step=10)
    trained = Trained(2, first_step_s=250.0, last_sign_s=1.0, step=60, resumed_step=10)
    come_back(world, Trained(1, first_step_s=262.0, last_sign_s=250.3, step=10, resumed_step=0), trained, opened=1)
    world.now += 4
    tell(world, replace(trained, first_step_s=254.0, last_sign_s=0.0, step=65), resumed_step=10)
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=65))
    world.settle()
    assert world.status.usefulSeconds == pytest.approx(254, abs=0.01)
    assert world.status.lost["Crash"] == pytest.approx(AWAY_S - 250, abs=0.01)


def test_each_of_several_recoveries_has_its_own_seconds() -> None:
    world = running(step=10)
    come_back(
        world,
        Trained(1, first_step_s=270.0, last_sign_s=200.23, step=30, resumed_step=0),
        Trained(2, first_step_s=200.0, last_sign_s=100.23, step=60, resumed_step=30),
        Trained(3, first_step_s=100.0, last_sign_s=0.0, step=90, resumed_step=60),
        opened=2,
    )
    assert [r.totalSeconds for r in world.status.recoveries] == [pytest.approx(0.23, abs=0.002)] * 2
    assert world.status.lost == {"Crash": pytest.approx(0.46, abs=0.01)}
    assert (world.status.goodput, world.status.progress.step) == ("1.00", 90)


def test_a_round_that_failed_before_its_first_step_ends_with_the_one_after_it() -> None:
    world = running(step=10)
    come_back(
        world,
        Trained(1, first_step_s=270.0, last_sign_s=200.23, step=30, resumed_step=0),
        Trained(2, last_sign_s=199.0),
        Trained(3, first_step_s=100.0, last_sign_s=0.0, step=90, resumed_step=30),
        opened=2,
    )
    assert [r.totalSeconds is not None for r in world.status.recoveries] == [True, True]
    assert world.status.lost["Crash"] == pytest.approx(100.23, abs=0.01)


def test_a_standstill_is_no_useful_time_when_nobody_could_mend_it() -> None:
    """The rank failed 200 s after the leader went, and no agent had a grant."""
    world = running(step=10)
    world.now += AWAY_S
    tell(world, Trained(1, first_step_s=262.0, last_sign_s=61.0, step=50, resumed_step=0))
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=50))
    world.agent(2, verdict=verdict(), verdict_age_s=61.0)
    world.settle()
    assert world.status.phase is JobPhase.RECOVERING
    assert (world.status.usefulSeconds, world.status.goodput) == (pytest.approx(200, abs=0.01), "1.00")
    for slot in world.slots:
        world.obey(slot, step=51, resumed=50, trained=(Trained(2, 0.0, 0.0, 51, 50),))
    world.now += 1
    world.settle()
    assert world.status.lost == {"Crash": pytest.approx(62, abs=0.01)}


def test_a_recovery_that_a_leader_began_and_did_not_see_end_took_as_long_as_it_did() -> None:
    world = running(step=10)
    world.agent(2, verdict=verdict(), verdict_age_s=0.0)
    world.settle()
    world.now += AWAY_S
    trained = Trained(2, first_step_s=AWAY_S - 0.4, last_sign_s=0.6, step=90, resumed_step=8)
    for slot in world.slots:
        world.obey(slot, step=90, resumed=8, trained=(trained,))
    world.settle()
    (recovery,) = world.status.recoveries
    assert (recovery.totalSeconds, recovery.lostSteps) == (pytest.approx(0.4, abs=0.002), 2)
    again = 260 * 1 / 81  # of 81 steps in 260 s after the first one
    assert world.status.lost == {"Crash": pytest.approx(0.4 + again, abs=0.01)}
    assert world.status.usefulSeconds == pytest.approx(260 - again, abs=0.01)


def test_saves_while_nobody_listened_are_saves() -> None:
    world = running(step=10)
    come_back(
        world,
        Trained(1, first_step_s=270.0, last_sign_s=200.2, step=30, resumed_step=0, saved_s=5.0),
        Trained(2, first_step_s=200.0, last_sign_s=0.0, step=60, resumed_step=30, saved_s=2.0, evaluated_s=3.0),
        opened=1,
    )
    assert world.status.lost["Checkpoint"] == pytest.approx(7)
    assert world.status.lost["Evaluation"] == pytest.approx(3)
    world.now += 1
    tell(world, pauses={"save": [2, 1.0, 1.0, 2.5]})
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=61))
    world.settle()
    assert world.status.lost["Checkpoint"] == pytest.approx(7.5)


def test_times_that_cannot_be_are_left_out() -> None:
    for told in (
        Trained(2, first_step_s=math.nan, last_sign_s=0.0, step=90, resumed_step=8),
        Trained(2, first_step_s=1.0, last_sign_s=2.0, step=90, resumed_step=8),
        Trained(2, first_step_s=1e300, last_sign_s=1.0, step=90, resumed_step=8),
        Trained(2, first_step_s=-5.0, last_sign_s=-6.0, step=90, resumed_step=8),
        Trained(2, first_step_s=9.0, last_sign_s=1.0, step=90, resumed_step=8, saved_s=math.inf),
        Trained(2, first_step_s=9.0, last_sign_s=1.0, step=8, resumed_step=8),
    ):
        world = running(step=10)
        world.agent(2, verdict=verdict(), verdict_age_s=0.0)
        world.settle()
        world.now += 3
        for slot in world.slots:
            world.obey(slot, step=90, resumed=8, trained=(told,))
        world.settle()
        assert world.status.recoveries[0].totalSeconds == pytest.approx(3, abs=0.002)


def test_a_stop_that_was_asked_for_before_a_step_was_seen_is_accounted_from_the_first_step() -> None:
    world = opened()
    world.spec = job_spec(suspend=True)
    world.settle()
    assert (world.status.phase, world.status.firstStepAt) == (JobPhase.SUSPENDING, "")
    come_back(
        world,
        Trained(1, first_step_s=260.0, last_sign_s=250.23, step=30, resumed_step=0),
        Trained(2, first_step_s=250.0, last_sign_s=0.5, step=277, resumed_step=28),
        opened=1,
    )
    assert world.status.firstStepAt != ""
    assert 0.9 < float(world.status.goodput) <= 1
