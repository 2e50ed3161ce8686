"""A rank that ends with 0 while others go on is the cause of what those lose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, recovered, running, script_spec, verdict
from trainmaster.contract.wire import RankState
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.failure.first_cause import CASCADE_WAIT_S


def leaves(world: World, slots: tuple[int, ...], step: int) -> None:
    """The ranks of these slots end with 0 after a step; the others lose them."""
    for slot in world.members:
        if slot in slots:
            world.agent(slot, ranks=world.ranks(slot, step=step, state=RankState.EXITED, exit_code=0), done=True)
        else:
            said: dict[str, Any] = {"cascade": True, "message": "RuntimeError: Connection closed by peer", "step": step}
            lost = verdict(slot, round=world.status.round, **said)
            world.agent(slot, verdict=lost, verdict_age_s=CASCADE_WAIT_S, ranks=world.ranks(slot, step=step))


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ((1,), "rank 1 ended with exit code 0 after step 50, while 3 other ranks were still training"),
        ((1, 3), "rank 1 (and 1 more) ended with exit code 0 after step 50, while 2 other ranks were still training"),
        ((1, 2, 3), "rank 1 (and 2 more) ended with exit code 0 after step 50, while 1 other rank was still training"),
    ],
)
def test_the_rank_that_left_is_named_and_not_what_the_others_lost(slots: tuple[int, ...], words: str) -> None:
    world = running(script_spec(), step=49)
    leaves(world, slots, 50)
    world.write()
    failure = world.status.lastFailure
    assert failure is not None
    assert (failure.cause, failure.rank, failure.exitCode, failure.message) == ("Crash", 1, 0, words)
    assert failure.pod == "job-worker-1-0"


def test_a_rank_that_lost_a_peer_without_any_that_left_is_named_itself() -> None:
    world = running(script_spec(), step=49)
    leaves(world, (), 50)
    world.write()
    assert world.status.lastFailure is not None
    assert "Connection closed" in world.status.lastFailure.message


def test_a_rank_that_leaves_at_the_same_step_each_time_makes_no_progress() -> None:
    world = running(script_spec(), step=49)
    for _ in range(12):
        leaves(world, (1,), 50)
        world.write()
        if world.status.phase is JobPhase.FAILED:
            break
        recovered(world, step=49)
    assert world.status.phase is JobPhase.FAILED
    restarts = world.status.restarts
    assert (restarts.inPlace, restarts.pod, restarts.full) == (3, 3, 2)
    assert world.status.lastFailure is not None
    assert "rank 1 ended with exit code 0 after step 50" in world.status.lastFailure.message
