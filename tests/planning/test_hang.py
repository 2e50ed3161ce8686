"""A plain limit on the silence of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import job_spec, opened, running
from trainmaster.contract.wire import Cause, RankState
from trainmaster_operator.api.status import JobPhase

LIMIT = {"hang": {"limitSeconds": 8}}


def silent(silent_s: float, step: int = 10, **fields: Any) -> dict[str, Any]:
    return {"step": step, "silent_s": silent_s, **fields}


def test_ranks_that_say_nothing_for_the_limit_restart_in_place() -> None:
    world = running(job_spec(recovery=LIMIT))
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, **silent(7.0 + slot / 10)), silent_s=0.2)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(8 - 7.3 - 0.2)
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, **silent(8.0 + slot / 10)), silent_s=0.2)
    world.write()
    assert (world.status.phase, world.status.round, world.status.restarts.inPlace) == (JobPhase.RECOVERING, 2, 1)
    assert world.status.lastFailure is not None
    assert (world.status.lastFailure.cause, world.status.lastFailure.rank) == (Cause.HANG.value, 3)
    assert world.status.recoveries[0].clock["detect"] == pytest.approx(8.3)


@pytest.mark.parametrize(
    ("reports", "blamed"),
    [
        ({0: silent(9), 1: silent(8.5), 2: silent(9.5), 3: silent(8)}, 2),  # the longest silent
        ({0: silent(9), 1: silent(8.5, step=9), 2: silent(9.5), 3: silent(8)}, 1),  # the furthest behind
        (
            {0: silent(9, step=8), 1: silent(8), 2: silent(8.1, state=RankState.STOPPED), 3: silent(8)},
            2,
        ),  # a stopped one
        ({0: silent(9), 1: silent(1, step=9), 2: silent(9), 3: silent(9)}, 1),  # the others wait for it
    ],
)
def test_the_rank_to_blame_is_named(reports: dict[int, dict[str, Any]], blamed: int) -> None:
    world = running(job_spec(recovery=LIMIT))
    for slot, fields in reports.items():
        world.agent(slot, ranks=world.ranks(slot, **fields))
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rank == blamed


@pytest.mark.parametrize(
    ("fields", "agent", "hangs"),
    [
        ({"phase": "step"}, {}, True),
        ({"phase": "rendezvous"}, {}, True),
        ({"phase": "build"}, {}, True),
        ({"phase": "load"}, {}, True),
        ({"phase": "eval"}, {}, False),
        ({"phase": "drain"}, {}, False),
        ({"phase": "eval", "state": RankState.STOPPED}, {}, True),
        ({"state": RankState.EXITED}, {}, False),
        ({}, {"silent_s": 15.0}, False),  # the agent itself is silent: its words are old
        ({}, {"round": 0}, False),  # of another round
    ],
)
def test_only_silence_that_means_something_counts(fields: dict[str, Any], agent: dict[str, Any], hangs: bool) -> None:
    world = running(job_spec(recovery=LIMIT))
    world.agent(2, ranks=world.ranks(2, **{**silent(9), **fields}), **agent)
    assert world.plan().intent is hangs


def test_without_a_limit_silence_is_no_failure() -> None:
    world = running(job_spec(recovery={"hang": {"limitSeconds": None}}))
    world.agent(2, ranks=world.ranks(2, **silent(1e6)))
    assert not world.plan().intent


def test_the_limit_is_decided_on_the_agents_word_and_not_by_adding_up() -> None:
    world = running(job_spec(recovery=LIMIT))
    world.agent(2, ranks=world.ranks(2, **silent(7.9)), silent_s=0.4)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(0.5)  # the next report


def test_an_agent_that_never_starts_a_round_loses_its_pod() -> None:
    world = opened(job_spec(recovery=LIMIT))
    world.agent(3, round=0, ranks=())
    world.now += 7.5
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(0.5)
    world.now += 0.5
    world.write()
    assert world.status.incarnations == "0*3,1"
