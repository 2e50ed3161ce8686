"""What people see."""

from __future__ import annotations

import math

import pytest

from tests.planning.world import job_spec, opened, recovered, running, script_spec, verdict
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import CheckpointSeen
from trainmaster_operator.planning.facts.timestamps import since


def test_a_job_runs_from_its_first_completed_step() -> None:
    world = opened()
    for slot in world.slots:
        world.obey(slot, step=40, resumed=40)
    world.settle()
    assert world.status.phase is JobPhase.STARTING
    world.agent(1, ranks=world.ranks(1, step=41))
    decision = world.write()
    assert decision.intent
    assert (world.status.phase, world.status.progress.step) == (JobPhase.RUNNING, 41)


def test_a_step_seen_while_a_checkpoint_loads_is_not_a_completed_one() -> None:
    world = opened()
    world.agent(1, ranks=world.ranks(1, step=40, phase="load"))
    assert not world.plan().intent


def test_progress_is_not_an_intent_and_an_equal_report_changes_nothing() -> None:
    world = running(step=10)
    assert world.plan().status is world.status
    world.now += 2
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=14, loss=2.34567891, tokens=1400))
    decision = world.write()
    assert not decision.intent
    progress = decision.status.progress
    assert (progress.step, progress.totalSteps, progress.loss) == (14, 100, "2.34568")
    assert progress.stepsPerSecond == pytest.approx(2.0)
    assert progress.tokensPerSecond == pytest.approx(2.0 * 400)
    assert progress.etaSeconds == pytest.approx(43.0)
    assert world.plan().status is world.status


def test_a_rate_is_smoothed() -> None:
    world = running(step=10)
    for step, seconds in ((20, 10), (21, 10)):
        world.now += seconds
        for slot in world.slots:
            world.agent(slot, ranks=world.ranks(slot, step=step))
        world.write()
    assert world.status.progress.stepsPerSecond == pytest.approx(1 + (1 - math.exp(-1)) * (0.1 - 1), abs=1e-5)


def test_the_first_step_of_a_round_is_progress_where_it_is_the_last_one_before_the_failure() -> None:
    world = running(step=10)
    world.now += 20
    world.agent(2, verdict=verdict())
    world.write()
    for slot in world.slots:
        world.obey(slot, step=8, resumed=8)
    world.now += 1
    world.agent(1, ranks=world.ranks(1, step=10))
    assert since(world.status.progress.updatedAt, world.now) >= 21
    world.write()
    assert (world.status.phase, since(world.status.progress.updatedAt, world.now)) == (JobPhase.RUNNING, 0)
    assert world.plan().status is world.status


def test_a_loss_that_is_not_a_number_is_text() -> None:
    world = running(step=10)
    world.agent(0, ranks=world.ranks(0, step=11, loss=math.nan))
    assert world.write().status.progress.loss == "nan"


def test_a_recovery_ends_with_the_first_step_and_the_clock_of_the_agents_that_waited_least() -> None:
    world = running(step=10)
    world.agent(2, verdict=verdict(), verdict_age_s=0.1)
    world.write()
    for slot in world.slots:
        world.obey(slot, step=8, resumed=8, clock={"fork": 0.01 * slot, "rendezvous": 0.08 - 0.01 * slot})
    world.now += 0.4
    world.agent(1, ranks=world.ranks(1, step=9))
    decision = world.write()
    (recovery,) = world.status.recoveries
    assert (recovery.resumedStep, recovery.lostSteps, recovery.totalSeconds) == (8, 2, pytest.approx(0.5, abs=0.002))
    assert {k: recovery.clock[k] for k in ("fork", "rendezvous")} == {"fork": 0.03, "rendezvous": 0.05}
    assert [e.reason for e in decision.events] == ["Recovered"]
    assert (world.status.progress.step, world.status.progress.highestStep) == (9, 10)
    for slot in world.slots:
        assert "first_step" not in world.status.recoveries[0].clock, "not all agents have reported it"
        after = {"load": 0.01 * slot, "first_step": 0.1 - 0.01 * slot}
        world.agent(slot, clock={**world.agents[slot].clock, **after})
        assert not world.write().intent
    known = world.status.recoveries[0].clock
    assert (known["load"], known["first_step"]) == (0.03, 0.07)


def test_the_rate_of_steps_survives_a_recovery() -> None:
    world = running(step=10)
    world.now += 10
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=20))
    world.write()
    rate = world.status.progress.stepsPerSecond
    world.agent(2, verdict=verdict())
    world.write()
    world.now += 100
    recovered(world, step=16, resumed=15)
    assert world.status.progress.stepsPerSecond == rate


def test_checkpoints_of_a_newer_round_count_more() -> None:
    world = running()
    for seen, kept in (((50, 1), (50, 1)), ((40, 1), (50, 1)), ((45, 2), (45, 2)), ((60, 1), (45, 2))):
        world.checkpoint = CheckpointSeen(*seen, "storage")
        world.write()
        assert world.status.checkpoint is not None
        assert (world.status.checkpoint.step, world.status.checkpoint.round) == kept


def test_a_script_shows_the_steps_and_the_total_that_its_agent_tells() -> None:
    world = running(script_spec(), step=7)
    assert (world.status.phase, world.status.progress.step, world.status.progress.totalSteps) == (
        JobPhase.RUNNING,
        7,
        100,
    )


def test_ready_workers_are_those_that_have_joined() -> None:
    world = opened(job_spec(3))
    assert world.status.workers.ready == 3
    world.agent(1, joined=False)
    decision = world.plan()
    assert (decision.intent, decision.status.workers.ready) == (False, 2)


def test_a_round_that_resumes_where_the_job_ends_shows_the_last_step() -> None:
    world = running(step=98)
    world.agent(2, verdict=verdict())
    world.write()
    for slot in world.slots:
        world.obey(slot, step=100, resumed=100, done=True)
    world.write()
    assert (world.status.phase, world.status.progress.step) == (JobPhase.SUCCEEDED, 100)
