"""Ranks that die while no leader answers: their agents restart them, as often as was granted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import World
from trainmaster.contract.wire import Cause, DirectiveState

pytestmark = pytest.mark.processes

SLOTS = 3
WAITING = """
import os, time
print("round", os.environ["TRAINMASTER_ROUND"], "restart", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while True: time.sleep(0.05)
"""


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """Three agents with one rank each, and an operator that is to fall silent. None of them has torch."""
    world = make_world(slots=SLOTS, grant=1, restarts=0)
    for slot in range(SLOTS):
        world.start([sys.executable, world.script(WAITING)], slot=slot, **world.without_torch())
    # A rank that isn't born yet is reported with pid 0.
    world.operator.wait_for(lambda: len([pid for pid in world.rank_pids().values() if pid]) == SLOTS, "ranks")
    world.operator.wait_for(lambda: world.operator.agents[0].next_store != world.operator.store, "the next store")
    return world


def restarted(world: World, round: int) -> None:
    world.until(lambda: all(f"round {round} restart {round - 1}" in world.log(slot) for slot in range(SLOTS)))


def kill(world: World, rank: int) -> None:
    os.kill(world.rank_pid(rank), signal.SIGKILL)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_restarts_with_all_others_while_no_operator_answers(world: World, victim: int) -> None:
    operator, old, store = world.operator, world.rank_pids(), world.operator.store
    operator.direct(silent=True)
    kill(world, victim)
    restarted(world, 2)
    assert operator.reports[-1].round == 1
    operator.direct(silent=False)
    operator.wait_for(lambda: all(a.report and a.report.round == 2 for a in operator.agents), "reports of round 2")
    report = operator.agents[0].report
    assert report is not None
    (granted,) = report.granted
    assert report.minor == granted.round - 1 == 1
    assert (granted.verdict.rank, granted.verdict.cause, granted.verdict.signal) == (victim, Cause.CRASH, "SIGKILL")
    assert granted.verdict.age_s > 0  # from the failure to the opening
    assert [told.round for told in report.trained] == [1, 2]
    assert granted.store != store
    assert set(world.rank_pids().values()).isdisjoint(old.values())


def test_the_grant_is_used_up_and_a_leader_renews_it(world: World) -> None:
    operator = world.operator
    operator.direct(silent=True)
    kill(world, 1)
    restarted(world, 2)
    operator.direct(silent=False)
    operator.wait_for(lambda: all(a.report and a.report.round == 2 for a in operator.agents), "reports of round 2")
    granted = operator.agents[0].report.granted[0]  # type: ignore[union-attr]

    # The leader takes the round over, without a grant that goes further.
    operator.direct(round=2, minor=1, store=granted.store)
    operator.wait_for(lambda: not operator.agents[0].report.granted, "the end of what is told of it")  # type: ignore[union-attr]
    operator.direct(silent=True)
    kill(world, 1)
    world.until(lambda: not _alive(world.rank_pids()[1]))
    operator.direct(silent=False)
    operator.wait_for(lambda: any(r.verdict and r.round == 2 for r in operator.reports), "the verdict on round 2")
    assert not any("round 3" in world.log(slot) for slot in range(SLOTS))


def test_another_round_that_a_leader_publishes_wins_over_one_with_its_number(world: World) -> None:
    operator = world.operator
    operator.direct(silent=True)
    kill(world, 1)
    restarted(world, 2)
    operator.direct(silent=False, round=2, minor=0, secret="of the next", divisor=2)
    world.until(lambda: all(world.log(slot).count("round 2 restart 1") == 2 for slot in range(SLOTS)))
    operator.direct(state=DirectiveState.FINISH)
    assert [world.wait(slot) for slot in range(SLOTS)] == [0] * SLOTS


def test_a_leader_that_ended_a_granted_round_may_open_one_of_its_number(world: World) -> None:
    """It has not heard of the number, because agents name no round once its ranks are ended."""
    operator = world.operator
    operator.direct(silent=True)
    kill(world, 1)
    restarted(world, 2)
    operator.direct(silent=False, state=DirectiveState.HOLD, round=2)
    operator.wait_for(lambda: all(a.report and a.report.round == 0 for a in operator.agents), "the end of round 2")
    operator.direct(state=DirectiveState.RUN, minor=0)
    world.until(lambda: all(world.log(slot).count("round 2 restart 1") == 2 for slot in range(SLOTS)))


def test_a_leader_that_decided_the_same_at_the_same_time_restarts_nobody(world: World) -> None:
    operator = world.operator
    operator.direct(silent=True)
    kill(world, 1)
    restarted(world, 2)
    operator.direct(silent=False, round=2, minor=0, secret="of the next")
    operator.wait_for(lambda: all(a.report and a.report.round == 2 for a in operator.agents), "reports of round 2")
    heard = len(operator.reports)
    operator.wait_for(lambda: len(operator.reports) > heard + 12, "reports for more than a second")
    assert all(world.log(slot).count("round 2 restart 1") == 1 for slot in range(SLOTS))
    report = operator.agents[0].report
    assert report is not None
    assert [granted.round for granted in report.granted] == [2]  # the leader still has to learn the store
    operator.direct(minor=1, store=report.granted[0].store)
    operator.wait_for(lambda: not operator.agents[0].report.granted, "the end of what is told of it")  # type: ignore[union-attr]


def test_a_leader_that_cannot_write_is_as_good_as_none(world: World) -> None:
    operator = world.operator
    operator.direct(unable=True)
    kill(world, 1)
    restarted(world, 2)
    operator.wait_for(lambda: all(a.report and a.report.round == 2 for a in operator.agents), "reports of round 2")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
