"""The rank that the others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, recovered, running, verdict
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import Decision

WINDOW = 60


def split(world: World, *each: tuple[float, float], step: int = 11) -> Decision:
    """(step_seconds, wait_seconds) of the ranks of slots 0, 1, …"""
    for slot, (seconds, waits) in zip(world.slots, each, strict=True):
        ranks = world.ranks(slot, step=step, step_seconds=seconds, wait_seconds=waits)
        world.agent(slot, ranks=ranks)
    return world.settle()


SLOW_2 = [(2.0, 1.0), (2.0, 1.05), (2.0, 0.02), (2.0, 0.95)]


def reasons(decision: Decision) -> list[str]:
    return [event.reason for event in decision.events]


def world_of(**straggler: Any) -> World:
    return running(job_spec(recovery={"straggler": {"windowSeconds": WINDOW, **straggler}}), step=10)


def look_again(world: World, seconds: float, each: list[tuple[float, float]] = SLOW_2) -> Decision:
    world.now += seconds
    for slot, (took, waits) in zip(world.slots, each, strict=True):
        world.agent(slot, ranks=world.ranks(slot, step=12, step_seconds=took, wait_seconds=waits))
    return world.write()


def test_a_rank_that_the_others_wait_for_all_along_is_named_once() -> None:
    world = world_of()
    split(world, *SLOW_2)
    known = world.status.straggler
    assert known is not None
    assert (known.rank, known.told, known.computeSeconds, known.usualSeconds) == (2, False, 1.98, 1.0)
    assert not look_again(world, WINDOW - 1).events
    decision = look_again(world, 1)
    assert reasons(decision) == ["Straggler"]
    assert "rank 2 (job-worker-2-0)" in decision.events[0].message
    assert "computes for 1.98 s in each step, the median of the other ranks for 1 s" in decision.events[0].message
    assert not look_again(world, 1000).events
    assert world.status.restarts.total == 0


def test_when_it_will_have_been_one_for_long_enough_is_asked_for() -> None:
    world = world_of()
    split(world, *SLOW_2)
    world.now += 59.8
    assert world.plan().requeue_after_s == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    "each",
    [
        [(2.0, 1.0), (2.0, 1.0), (2.0, 0.7), (2.0, 1.0)],  # slower, not enough
        [(2.0, 0.0), (2.0, 0.0), (3.5, 0.0), (2.0, 0.0)],  # nobody waits: they don't step together
        [(2.0, 1.0), (2.0, 0.02), (2.0, 0.05), (2.0, 0.03)],  # one is fast
        [(2.0, 1.4), (2.0, 1.7), (2.0, 0.6), (2.0, 1.0)],  # ranks that differ a lot anyway
        [(0.0, 0.0), (0.0, 0.0), (2.0, 0.0), (0.0, 0.0)],  # one alone tells
    ],
)
def test_a_rank_that_is_as_fast_as_the_others_is_no_straggler(each: list[tuple[float, float]]) -> None:
    world = world_of()
    split(world, *each)
    assert world.status.straggler is None


def test_of_two_ranks_the_slower_one_is_found_by_the_other() -> None:
    world = running(job_spec(2), step=10)
    split(world, (2.0, 1.2), (2.0, 0.0))
    assert world.status.straggler is not None
    assert world.status.straggler.rank == 1


def test_of_two_ranks_the_usual_time_is_that_of_the_other_one() -> None:
    world = running(job_spec(2, recovery={"straggler": {"windowSeconds": WINDOW}}), step=10)
    split(world, (2.0, 1.2), (2.0, 0.0))
    known = world.status.straggler
    assert known is not None
    assert (known.computeSeconds, known.usualSeconds) == (2.0, 0.8)
    (event,) = look_again(world, WINDOW, [(2.0, 1.2), (2.0, 0.0)]).events
    assert "computes for 2 s in each step, the other rank for 0.8 s" in event.message


def test_a_rank_that_becomes_slower_is_told_as_slow_as_it_is() -> None:
    """Ranks smooth their times, so the first look sees little of a slowness that has just begun."""
    world = world_of()
    split(world, (1.8, 0.7), (1.8, 0.75), (1.8, 0.02), (1.8, 0.65))
    slow = [(20.0, 18.9), (20.0, 19.0), (20.0, 0.02), (20.0, 18.8)]
    (event,) = look_again(world, WINDOW, slow).events
    assert "computes for 20 s in each step, the median of the other ranks for 1.1 s" in event.message
    known = world.status.straggler
    assert known is not None
    assert (known.computeSeconds, known.usualSeconds) == (19.98, 1.1)
    look_again(world, 1, [(30.0, 28.9), (30.0, 29.0), (30.0, 0.02), (30.0, 28.8)])
    assert world.status.straggler is not None
    assert (world.status.straggler.told, world.status.straggler.computeSeconds) == (True, 29.98)


def test_a_rank_that_recovers_is_forgotten_and_another_one_begins_anew() -> None:
    world = world_of()
    split(world, *SLOW_2)
    look_again(world, WINDOW / 2, [(1.0, 0.1)] * 4)
    assert world.status.straggler is None
    look_again(world, 1)
    look_again(world, WINDOW / 2, [SLOW_2[2], SLOW_2[0], SLOW_2[1], SLOW_2[3]])
    assert world.status.straggler is not None
    assert world.status.straggler.rank == 0
    assert not look_again(world, WINDOW - 1, [SLOW_2[2], SLOW_2[0], SLOW_2[1], SLOW_2[3]]).events


def test_its_pod_is_replaced_where_that_is_wanted() -> None:
    world = world_of(action="Replace")
    split(world, *SLOW_2)
    world.now += WINDOW
    world.settle()
    assert (world.status.phase, world.status.incarnations) == (JobPhase.RECOVERING, "0*2,1,0")
    assert world.status.lastFailure is not None
    assert (world.status.lastFailure.cause, world.status.lastFailure.rank) == ("Straggler", 2)
    assert world.status.restarts.pod == 1


def test_nothing_of_it_outlives_its_round() -> None:
    world = world_of(action="Replace")
    split(world, *SLOW_2)
    world.agent(1, verdict=verdict(1))
    world.now += WINDOW
    world.settle()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.cause == "Crash"
    recovered(world, step=11, resumed=10)
    assert world.status.straggler is None
    assert world.status.restarts.total == 1


def test_a_slow_rank_whose_budget_is_exhausted_is_reported_and_never_ends_the_job() -> None:
    recovery = {"straggler": {"windowSeconds": WINDOW, "action": "Replace"}, "budget": {"pod": 0, "full": 0}}
    world = running(job_spec(recovery=recovery), step=10)
    split(world, *SLOW_2)
    (event,) = look_again(world, WINDOW).events
    assert event.message.endswith("because the budget for replaced pods (recovery.budget.pod) is exhausted")
    assert not look_again(world, 1000).intent
    assert (world.status.phase, world.status.restarts.total) == (JobPhase.RUNNING, 0)


def test_a_slow_rank_that_stays_slow_without_progress_is_reported_with_that_reason() -> None:
    straggler = {"windowSeconds": WINDOW, "action": "Replace"}
    recovery = {"straggler": straggler, "budget": {"perCause": 1}}
    world = running(job_spec(recovery=recovery), step=30)
    split(world, *SLOW_2, step=30)
    world.now += WINDOW
    world.settle()
    assert world.status.restarts.pod == 1
    recovered(world, step=11, resumed=10)
    split(world, *SLOW_2, step=12)
    (event,) = look_again(world, WINDOW).events
    assert event.message.endswith("is not replaced before the job is beyond step 30 (recovery.budget.perCause)")
    assert world.status.restarts.pod == 1


def test_a_slow_rank_is_replaced_as_soon_as_the_budget_allows_it_again() -> None:
    budget = {"pod": 1, "full": 0, "windowSeconds": 600}
    recovery = {"straggler": {"windowSeconds": WINDOW, "action": "Replace"}, "budget": budget}
    world = running(job_spec(recovery=recovery), step=10)
    split(world, *SLOW_2)
    world.now += WINDOW
    world.settle()
    assert world.status.restarts.pod == 1
    recovered(world, step=13, resumed=10)
    split(world, *SLOW_2, step=14)
    world.now += WINDOW
    decision = world.settle()
    assert world.status.restarts.pod == 1
    assert decision.requeue_after_s is not None
    world.now += 600 - WINDOW
    world.settle()
    assert world.status.restarts.pod == 2


def test_a_rule_for_stragglers_is_applied_whatever_the_budget_is() -> None:
    rules = [{"causes": ["Straggler"], "action": "Fail"}]
    recovery = {"straggler": {"windowSeconds": WINDOW, "action": "Replace"}, "budget": {"pod": 0}, "rules": rules}
    world = running(job_spec(recovery=recovery), step=10)
    split(world, *SLOW_2)
    look_again(world, WINDOW)
    assert world.status.phase is JobPhase.FAILED


def test_a_rule_for_any_failure_does_not_restart_all_pods_for_a_slow_rank() -> None:
    """When the budget for replaced pods is exhausted, its action is followed by a restart of all pods."""
    straggler = {"windowSeconds": WINDOW, "action": "Replace"}
    recovery = {"straggler": straggler, "budget": {"pod": 0}, "rules": [{"action": "ReplacePod"}]}
    world = running(job_spec(recovery=recovery), step=10)
    split(world, *SLOW_2)
    look_again(world, WINDOW)
    assert (world.status.phase, world.status.restarts.total) == (JobPhase.RUNNING, 0)


def test_a_new_leader_does_not_name_a_straggler_again() -> None:
    world = world_of()
    split(world, *SLOW_2)
    assert reasons(look_again(world, WINDOW)) == ["Straggler"]
    heard, world.agents, world.leading_s = world.agents, {}, 0.0
    world.now += 1
    world.write()
    world.agents, world.leading_s = heard, 1000.0
    assert not look_again(world, 1).events
    assert not look_again(world, WINDOW).events
