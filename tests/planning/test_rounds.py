"""When a round opens, and on which store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.world import job_spec, opened, pending, recovered, running, script_spec, store, verdict
from trainmaster_operator.planning.facts.job_state import JobPhase


def test_the_first_round_opens_when_every_agent_has_joined() -> None:
    world = pending()
    for slot in (0, 1, 2):
        world.agent(slot)
        assert not world.plan().intent
    world.agent(3)
    status = world.write().status
    assert (status.round, status.roundMap, status.phase) == (1, "0-3", JobPhase.STARTING)
    assert status.roundStore == "10.0.0.0:1001"


@pytest.mark.parametrize("fields", [{"joined": False}, {"silent_s": 100.0}, {"draining": True}])
def test_an_agent_that_is_not_there_keeps_the_round_from_opening(fields: dict[str, object]) -> None:
    world = pending()
    for slot in world.slots:
        world.agent(slot)
    world.agent(1, **fields)
    world.write()
    assert world.status.roundStore == ""


def test_an_agent_of_another_pod_of_the_same_name_does_not_count() -> None:
    world = pending()
    for slot in world.slots:
        world.agent(slot)
    world.agents[1] = replace(world.agents[1], pod_uid="another")
    assert not world.plan().intent


def test_a_scripts_store_beside_rank_0_is_waited_for_and_then_replaced_by_the_next() -> None:
    world = pending(script_spec())
    for slot in world.slots:
        world.agent(slot)
    world.agent(0, next_store=None)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s is not None
    world.now += decision.requeue_after_s
    assert world.write().status.roundStore == "10.0.0.1:1002"


def test_our_own_loop_takes_the_store_of_another_member_at_once() -> None:
    world = pending()
    for slot in world.slots:
        world.agent(slot)
    world.agent(0, next_store=None)
    assert world.write().status.roundStore == "10.0.0.1:1002"


def test_a_store_that_served_one_of_the_last_rounds_is_not_taken_from_an_old_record() -> None:
    world = opened()
    stale = world.agents[0].next_store
    assert stale is not None
    for number in (2, 3, 4):
        world.agent(2, round=number - 1, verdict=verdict(round=number - 1))
        world.agent(1, round=number - 1, next_store=store(1, 100 * number))
        world.agent(0, round=number - 1, next_store=store(0, 1))
        world.write()
        assert world.status.roundStore == f"10.0.0.1:{1000 + 100 * number}"
    assert world.status.lastStore.endswith(",10.0.0.0:1001")


def test_what_an_agent_offered_before_others_opened_a_round_by_the_grant_may_be_the_store_of_that() -> None:
    world = opened()
    world.agent(2, round=2, minor=1, verdict=verdict(round=2))
    for slot in (0, 1, 3):
        world.agent(slot, round=1)
    world.status = world.status.model_copy(update={"round": 2, "roundMinor": 1})
    world.agent(2, next_store=store(2, 77))
    world.write()
    assert world.status.round == 3
    assert world.status.roundStore == "10.0.0.2:1077"


def test_a_round_does_not_open_before_all_know_that_the_last_one_is_over() -> None:
    world = opened()
    world.unheard = frozenset({1})
    world.pod(2, phase="Failed")
    world.write()
    assert (world.status.round, world.status.roundStore) == (2, "")
    world.pod(2)
    world.agent(2)
    world.write()
    assert world.status.roundStore == ""
    world.unheard = frozenset()
    world.write()
    assert world.status.roundStore != ""


def test_a_round_that_forms_gets_a_number_above_those_that_were_opened_without_a_leader() -> None:
    world = opened()
    world.pod(2, phase="Failed")
    world.write()
    assert (world.status.round, world.status.recoveries[-1].round) == (2, 2)
    world.unheard = frozenset({0, 1, 3})
    for slot in (0, 1, 3):
        world.agent(slot, round=2, minor=1, next_store=store(slot, 50 + slot))
    world.write()
    assert (world.status.round, world.status.recoveries[-1].round) == (3, 3)
    assert world.status.roundStore == ""
    assert world.status.restarts.total == 1


def test_a_round_that_forms_gets_another_number_although_agents_have_ended_theirs_of_that_number() -> None:
    world = opened()
    world.pod(2, phase="Failed")
    world.write()
    for slot in (0, 1, 3):  # They have heard that round 2 forms, after they had opened one themselves.
        world.agent(slot, round=2, minor=1, next_store=store(slot, 50 + slot))
    world.write()
    assert (world.status.round, world.status.roundStore) == (3, "")
    world.pod(2)
    world.agent(2)
    world.write()
    assert (world.status.round, world.status.roundMinor, world.status.roundStore) == (3, 0, "10.0.0.0:1050")


def test_a_round_never_takes_the_store_of_the_one_before() -> None:
    world = opened(script_spec())
    used = world.status.roundStore
    host, port = used.split(":")
    stale = replace(store(0, 0), host=host, port=int(port))
    world.agent(0, next_store=stale)
    world.agent(2, verdict=verdict())
    assert world.write().status.roundStore == ""
    assert not world.plan().intent
    world.agent(0, next_store=store(0, 77))
    assert world.write().status.roundStore == "10.0.0.0:1077"


def test_a_port_that_comes_back_by_chance_does_not_block_a_job_of_one_pod() -> None:
    world = opened(job_spec(1))
    host, port = world.status.roundStore.split(":")
    world.agent(0, next_store=replace(store(0, 0), host=host, port=int(port)), verdict=verdict(rank=0))
    world.write()
    world.now += world.plan().requeue_after_s or 0.0
    assert world.write().status.roundStore == f"{host}:{port}"


def test_the_spec_says_what_to_resume_from_until_the_job_has_trained() -> None:
    world = opened(job_spec(checkpoint={"resume": "Never"}))
    assert world.status.roundResume == "Never"
    world.agent(2, verdict=verdict())
    world.write()
    assert (world.status.round, world.status.roundResume) == (2, "Never")
    recovered(world, step=3, resumed=0)
    world.agent(2, verdict=verdict(round=2))
    world.write()
    assert (world.status.round, world.status.roundResume) == (3, "Auto")


def test_a_round_that_is_open_stays_as_it_is() -> None:
    world = running()
    before = world.status
    assert world.plan().status == before
