"""Rounds that agents opened without a leader, as the next leader finds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, running, script_spec, store, verdict
from trainmaster.contract.wire import DirectiveState, Granted
from trainmaster_operator.planning.facts.job_state import JobPhase, Rung
from trainmaster_operator.planning.failure import failure_budget
from trainmaster_operator.planning.rounds import leaderless_restart
from trainmaster_operator.planning.rounds.directives import directive


def granted(round: int = 2, rank: int = 2, age_s: float = 1.0, number: int = 900) -> Granted:
    return Granted(round, store(0, number), verdict(rank=rank, round=round - 1, step=10, message="killed"), age_s)


def ahead(world: World, slot: int, round: int = 2, minor: int = 1, told: tuple[Granted, ...] = ()) -> None:
    """The slot's agent runs a round that it opened, or was told of."""
    world.agent(slot, round=round, minor=minor, granted=told, verdict=None, verdict_age_s=0.0, resumed_step=None)
    world.agent(slot, ranks=world.ranks(slot, step=0, phase="rendezvous"))


def restarted(world: World, *told: Granted) -> None:
    last = told[-1].round
    for slot in world.members:
        ahead(world, slot, last, len(told), told if slot == 0 else ())


def test_a_leader_takes_over_what_all_members_run_and_counts_it() -> None:
    world = running()
    restarted(world, granted())
    decision = world.write()
    status = world.status
    assert decision.intent
    assert (status.round, status.roundMinor, status.roundStore) == (2, 1, "10.0.0.0:1900")
    assert (status.phase, status.restarts.inPlace) == (JobPhase.RECOVERING, 1)
    assert [(s.rung, s.cause) for s in status.spent] == [(Rung.IN_PLACE, "Crash")]
    (recovery,) = status.recoveries
    assert (recovery.round, recovery.cause, recovery.rank, recovery.pod) == (2, "Crash", 2, "job-worker-2-0")
    assert status.lastFailure is not None
    assert (status.lastFailure.rank, status.lastFailure.round) == (2, 1)
    assert not world.plan().intent


def test_members_that_run_it_are_told_nothing_new() -> None:
    world = running()
    restarted(world, granted())
    world.write()
    told = directive(world.spec, world.status, world.observed(), 1)
    assert told.state is DirectiveState.RUN
    assert told.assignment is not None
    assert (told.assignment.round, told.assignment.minor, told.assignment.restart_count) == (2, 1, 1)
    assert told.assignment.grant > told.assignment.minor


def test_the_recovery_ends_with_its_first_step() -> None:
    world = running()
    restarted(world, granted())
    world.write()
    world.now += 2
    for slot in world.members:
        world.obey(slot, step=12, resumed=10, minor=1)
    world.settle()
    assert world.status.phase is JobPhase.RUNNING
    assert world.status.recoveries[-1].totalSeconds is not None


def test_several_in_a_row_count_one_by_one() -> None:
    world = running()
    restarted(world, granted(2, rank=1, number=900), granted(3, rank=3, number=901))
    world.write()
    assert (world.status.round, world.status.roundMinor, world.status.restarts.inPlace) == (3, 2, 2)
    assert [r.rank for r in world.status.recoveries] == [1, 3]
    assert world.status.lastStore.startswith("10.0.0.0:1901")


def test_what_a_member_said_of_the_round_before_is_no_news() -> None:
    world = running()
    restarted(world, granted())
    world.obey(2, step=10, resumed=0, verdict=verdict(rank=2), verdict_age_s=0.2, round=1)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s is not None
    assert decision.requeue_after_s <= 2.0
    ahead(world, 2)
    assert world.write().intent
    assert world.status.round == 2


def test_when_not_all_came_along_a_round_above_all_follows() -> None:
    world = running()
    restarted(world, granted(age_s=leaderless_restart.SETTLED_S))
    world.obey(3, step=10, resumed=0, round=1)
    world.write()
    assert (world.status.round, world.status.roundMinor) == (3, 0)
    assert world.status.restarts.inPlace == 1
    assert [r.round for r in world.status.recoveries] == [3]
    assert not world.plan().intent


def test_a_member_that_reports_the_agents_round_before_the_one_that_opened_it_is_no_reason_for_another_round() -> None:
    world = running()
    ahead(world, 1)
    world.agent(1, round_s=0.01)
    assert not world.plan().intent
    due_s = world.plan().requeue_after_s
    assert due_s is not None
    assert due_s <= leaderless_restart.SETTLED_S
    restarted(world, granted(age_s=0.02))
    world.write()
    assert (world.status.round, world.status.roundMinor) == (2, 1)
    assert [(r.round, r.cause) for r in world.status.recoveries] == [(2, "Crash")]
    assert world.status.restarts.inPlace == 1


def test_a_restart_of_the_agents_whose_cause_nobody_reports_is_counted_once_as_other() -> None:
    world = running()
    for slot in (1, 2, 3):
        ahead(world, slot)
        world.agent(slot, round_s=leaderless_restart.SETTLED_S)
    world.write()
    status = world.status
    assert (status.round, status.roundMinor, status.phase) == (3, 0, JobPhase.RECOVERING)
    assert [(r.round, r.cause, r.rung) for r in status.recoveries] == [(3, "Other", Rung.IN_PLACE)]
    assert (status.restarts.inPlace, sum(entry.count for entry in status.spent)) == (1, 1)
    assert status.totals is not None
    assert status.totals.failures == {"Other": 1}
    assert status.lastFailure is not None
    assert status.lastFailure.cause == "Other"
    assert not world.plan().intent


def opened_by_both(world: World, age_s: float = 0.1) -> None:
    """The leader answers the verdict while the agents, to whom it seemed silent, restart by themselves."""
    world.agent(2, verdict=verdict(), verdict_age_s=0.5)
    world.settle()
    for slot in world.members:
        ahead(world, slot, 2, 1, (granted(age_s=age_s),) if slot == 0 else ())
    world.settle()


def test_a_round_that_both_opened_is_the_agents_and_counts_once() -> None:
    world = running()
    opened_by_both(world)
    status = world.status
    assert (status.round, status.roundMinor, status.roundStore) == (2, 1, "10.0.0.0:1900")
    assert (status.restarts.inPlace, len(status.recoveries)) == (1, 1)
    assert status.lastStore.startswith("10.0.0.0:1900")


def test_a_round_that_some_began_with_the_leaders_store_is_followed_by_another() -> None:
    world = running()
    world.agent(2, verdict=verdict(), verdict_age_s=0.5)
    world.settle()
    for slot in (0, 1, 2):
        ahead(world, slot, 2, 1, (granted(age_s=0.5),) if slot == 0 else ())
    world.obey(3)
    assert not world.plan().intent
    ahead(world, 0, 2, 1, (granted(age_s=1.0),))
    world.write()
    assert (world.status.round, world.status.roundMinor) == (3, 0)


def test_a_round_that_some_began_with_the_leader_on_the_agents_store_is_one_round() -> None:
    world = running()
    kept = world.agents[0].next_store
    assert kept is not None
    world.agent(2, verdict=verdict(), verdict_age_s=0.5)
    world.settle()
    assert world.status.roundStore == f"{kept.host}:{kept.port}"
    for slot in (0, 1, 2):
        ahead(world, slot, 2, 1, (granted(age_s=2.0, number=kept.port - 1000),) if slot == 0 else ())
    world.obey(3)
    world.settle()
    assert (world.status.round, world.status.roundMinor) == (2, 1)


def test_a_leader_that_has_just_begun_acts_on_no_verdict() -> None:
    world = running()
    world.leading_s = 0.1
    world.agent(2, verdict=verdict(), verdict_age_s=0.1)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(0.2)
    world.leading_s = 0.3
    assert world.plan().intent


def test_a_round_of_a_leaders_own_begins_a_new_count() -> None:
    world = running()
    restarted(world, granted())
    world.settle()
    for slot in world.members:
        world.obey(slot, step=12, resumed=10, minor=1)
    world.settle()
    world.agent(1, verdict=verdict(rank=1, round=2), verdict_age_s=0.1)
    world.write()
    assert (world.status.round, world.status.roundMinor, world.status.restarts.inPlace) == (3, 0, 2)


RULES = {"rules": [{"causes": ["Crash"], "action": "ReplacePod"}]}


@pytest.mark.parametrize(
    ("recovery", "most"),
    [
        ({}, leaderless_restart.GRANT),
        ({"budget": {"inPlace": 1}}, 1),
        ({"budget": {"inPlace": 0}}, 0),
        ({"budget": {"perCause": 1}}, 1),
        (RULES, 0),
    ],
)
def test_no_more_is_granted_than_a_leader_would_do(recovery: dict[str, Any], most: int) -> None:
    spec = job_spec(recovery=recovery)
    assert leaderless_restart.highest(spec, running(spec).status) == most


def test_what_was_spent_is_not_granted_again() -> None:
    spec = script_spec(recovery={"budget": {"inPlace": 2}})
    world = running(spec)
    world.agent(2, verdict=verdict(), verdict_age_s=0.1)
    world.settle()
    assert leaderless_restart.highest(spec, world.status) == 1


def test_restarts_by_the_agents_below_the_highest_step_count_as_restarts_without_progress() -> None:
    world = running(step=50)
    restarted(world, granted(2, rank=1, number=900), granted(3, rank=3, number=901))  # both after step 10
    world.write()
    spent = world.status.spent
    assert failure_budget.without_progress(spent, "Crash", Rung.IN_PLACE, world.status.progress.highestStep) == 2
