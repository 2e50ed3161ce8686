"""Spares: they take a lost pod's ranks at once, and their own loss disturbs nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planning.world import World, job_spec, opened, pending, running, script_spec, store, verdict
from trainmaster.contract.wire import DirectiveState
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import JobPhase, Restarts
from trainmaster_operator.planning.facts.observation import PodToCreate
from trainmaster_operator.planning.rounds.directives import directive


def spared(replicas: int = 4, spares: int = 1, **workers: Any) -> JobSpec:
    return job_spec(workers={"replicas": replicas, "spares": spares, **workers})


def spared_script(replicas: int = 4, spares: int = 1) -> JobSpec:
    return script_spec(workers={**script_spec().workers.model_dump(), "replicas": replicas, "spares": spares})


def test_a_job_begins_with_a_pod_for_each_rank_and_for_each_spare() -> None:
    world = World(spared(3, 2))
    world.settle()
    assert world.plan().create == tuple(PodToCreate("worker", slot, 0) for slot in range(5))
    assert world.status.workers.replicas == 3


def test_the_first_round_waits_for_the_first_slots_but_not_for_long() -> None:
    world = pending(spared())
    for slot in (0, 1, 3, 4):
        world.agent(slot)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s is not None
    world.now += decision.requeue_after_s
    assert world.write().status.roundMap == "0-1,4,3"


def test_a_round_does_not_wait_for_a_spare() -> None:
    world = pending(spared())
    for slot in (0, 1, 2, 3):
        world.agent(slot)
    assert world.write().status.roundMap == "0-3"


def test_a_spare_is_parked_and_holds_a_store_ready() -> None:
    world = running(spared(spares=2))
    told = [directive(world.spec, world.status, world.observed(), slot) for slot in world.slots]
    assert [d.state for d in told] == [DirectiveState.RUN] * 4 + [DirectiveState.HOLD] * 2
    assert [d.keep_store for d in told] == [True, True, False, False, True, False]
    assert (world.status.workers.ready, world.status.workers.spares) == (4, 2)


def test_a_spare_takes_a_lost_pods_place_in_the_write_that_counts_the_loss() -> None:
    world = running(spared())
    world.pod(1, phase="Failed", exit_code=137)
    status = world.write().status
    assert (status.round, status.roundMap, status.incarnations) == (2, "0,4,2-3", "0,1,0*3")
    assert status.roundStore != ""
    assert status.restarts == Restarts(pod=1)
    told = directive(world.spec, world.status, world.observed(), 4)
    assert told.assignment is not None
    assert (told.assignment.first_rank, told.assignment.world_size) == (1, 4)
    assert directive(world.spec, world.status, world.observed(), 1).state is DirectiveState.HOLD


def test_the_lost_slot_becomes_the_spare_while_ranks_run() -> None:
    world = running(spared())
    world.pod(1, phase="Failed", exit_code=137)
    world.write()
    assert [d.name for d in world.plan().delete] == ["job-worker-1-0"]
    del world.pods[1]
    assert world.plan().create == (PodToCreate("worker", 1, 1),)
    world.pod(1)
    world.agent(1)
    for slot in (0, 2, 3, 4):
        world.obey(slot, step=12, resumed=10)
    world.settle()
    assert (world.status.phase, world.status.workers.spares) == (JobPhase.RUNNING, 1)
    world.pod(4, phase="Failed", exit_code=137)
    assert world.write().status.roundMap == "0-3"


def test_the_spare_may_become_rank_0_on_its_own_store() -> None:
    world = running(spared())
    world.agent(4, next_store=store(4, 77))
    world.pod(0, phase="Failed", exit_code=137)
    status = world.write().status
    assert (status.roundMap, status.roundStore) == ("4,1-3", "10.0.0.4:1077")


def test_two_losses_take_two_spares_and_a_third_waits_for_its_pod() -> None:
    world = running(spared(4, 2))
    for slot in (0, 2, 3):
        world.pod(slot, phase="Failed", exit_code=137)
    status = world.write().status
    assert (status.roundStore, status.incarnations) == ("", "1,0,1*2,0*2")
    world.pod(3)
    world.agent(3)
    assert world.write().status.roundMap == "4,1,5,3"


def test_a_spare_that_is_not_ready_is_not_taken() -> None:
    for fields in ({"joined": False}, {"silent_s": 100.0}, {"draining": True}):
        world = running(spared())
        world.agent(4, **fields)
        world.pod(1, phase="Failed", exit_code=137)
        assert world.write().status.roundStore == ""


def test_a_spare_replaces_a_pod_that_leaves_after_all_have_saved() -> None:
    world = running(spared())
    world.pod(2, deleting=True)
    world.write()
    for slot in range(4):
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    assert world.status.stopBound
    for slot in range(4):
        world.agent(slot, saved=True)
    status = world.write().status
    assert (status.roundMap, status.restarts) == ("0-1,4,3", Restarts(free=1))
    assert status.roundStore != ""


def test_a_member_that_is_silent_is_replaced_by_a_spare_when_ranks_restart_anyway() -> None:
    world = running(spared())
    world.agent(1, joined=False)
    world.agent(2, verdict=verdict())
    status = world.write().status
    assert (status.roundMap, status.restarts, status.incarnations) == ("0,4,2-3", Restarts(inPlace=1), "0*5")


@pytest.mark.parametrize(
    "harm",
    [
        {"pod": {"phase": "Failed", "exit_code": 1}},
        {"pod": {"deleting": True}},
        {"agent": {"silent_s": 25.0}},
        {"vanishes": True},
    ],
    ids=["ends", "is deleted", "is silent", "vanishes"],
)
def test_the_loss_of_a_spare_restarts_nobody_and_counts_nothing(harm: dict[str, Any]) -> None:
    world = running(spared())
    world.pod(4, **harm.get("pod", {}))
    world.agent(4, **harm.get("agent", {}))
    if harm.get("vanishes"):
        del world.pods[4]
    before = world.status
    status = world.write().status
    assert (status.incarnations, status.round, status.roundMap) == ("0*4,1", before.round, "0-3")
    assert (status.roundStore, status.phase, status.restarts) == (before.roundStore, JobPhase.RUNNING, Restarts())


def test_a_spare_that_ends_again_and_again_is_replaced_less_and_less_often() -> None:
    recovery = {"agentLostSeconds": 1e6, "hang": {"mode": "Off"}}
    world = running(job_spec(workers={"replicas": 4, "spares": 1}, recovery=recovery))
    waits = []
    for _ in range(12):
        world.pod(4, phase="Failed", exit_code=1)
        decision = world.plan()
        wait = 0.0 if decision.intent else decision.requeue_after_s
        assert wait is not None
        waits.append(round(wait))
        world.now += wait
        assert world.write().intent
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    world.now += 2000
    world.pod(4, phase="Failed", exit_code=1)
    world.write()
    world.pod(4, phase="Failed", exit_code=1)
    assert world.plan().requeue_after_s == pytest.approx(1.0)


def test_only_members_end_a_job() -> None:
    world = running(spared())
    for slot in range(4):
        world.agent(slot, done=True)
    assert world.write().status.phase is JobPhase.SUCCEEDED


def test_only_members_are_asked_to_stop() -> None:
    world = running(spared())
    world.spec = world.spec.model_copy(update={"suspend": True})
    world.write()
    for slot in range(4):
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    for slot in range(4):
        world.agent(slot, saved=True)
    world.write()
    assert world.status.phase is JobPhase.SUSPENDED
    assert len(world.plan().delete) == 5
    world.spec = world.spec.model_copy(update={"suspend": False})
    world.write()
    assert (world.status.incarnations, world.status.roundMap) == ("1*5", "")


def test_a_full_restart_puts_ranks_back_onto_the_first_slots() -> None:
    spec = job_spec(workers={"replicas": 2, "spares": 1}, recovery={"budget": {"inPlace": 0, "pod": 1}})
    world = running(spec)
    world.agent(1, verdict=verdict(1))
    world.write()
    assert world.status.roundMap == "0,2"
    world.obey(0, step=11, resumed=10)
    world.obey(2, step=11, resumed=10)
    world.settle()
    world.agent(2, round=2, verdict=verdict(1, round=2))
    world.write()
    assert (world.status.restarts, world.status.incarnations) == (Restarts(pod=1, full=1), "2*3")
    for slot in world.slots:
        world.pod(slot)
        world.agent(slot)
    assert world.write().status.roundMap == "0-1"


def test_a_script_gets_its_spare_once_nothing_of_the_lost_pod_can_write() -> None:
    world = running(spared_script())
    world.agent(1, silent_s=30.0)
    world.write()
    assert (world.status.roundStore, world.status.incarnations) == ("", "0,1,0*3")
    world.pods[1] = replace(world.pods[1], deleting=True, deleting_s=1.0)
    assert not world.plan().intent
    world.pods[1] = replace(world.pods[1], phase="Failed")
    world.agents.pop(1)
    assert world.write().status.roundMap == "0,4,2-3"


def test_a_script_gets_its_spare_for_a_pod_that_has_ended_once_the_others_have_heard() -> None:
    """Its store is that of rank 0, on which the agents may be opening the next round with the old ranks."""
    world = running(spared_script())
    world.unheard = frozenset({0})
    world.pod(1, phase="Failed", exit_code=137)
    assert world.write().status.roundStore == ""
    assert world.write().status.roundStore == ""
    world.unheard = frozenset()
    status = world.write().status
    assert (status.roundMap, status.roundStore != "") == ("0,4,2-3", True)


def test_a_spare_joins_on_another_store_than_the_one_that_agents_may_use_without_a_leader() -> None:
    world = running(spared())
    kept = world.agents[0].next_store
    world.pod(1, phase="Failed", exit_code=137)
    status = world.write().status
    assert status.roundMap == "0,4,2-3"
    assert kept is not None
    assert status.roundStore not in ("", f"{kept.host}:{kept.port}")


def test_spares_come_and_go_while_ranks_run() -> None:
    world = running(spared())
    world.spec = spared(spares=3)
    world.settle()
    assert unpack_counts(world.status.incarnations) == [0] * 7
    assert [p.slot for p in world.plan().create] == [5, 6]
    for slot in (5, 6):
        world.pod(slot)
        world.agent(slot)
    world.spec = spared(spares=0)
    world.settle()
    assert unpack_counts(world.status.incarnations) == [0] * 4
    assert sorted(d.name for d in world.plan().delete) == [f"job-worker-{slot}-0" for slot in (4, 5, 6)]


def test_a_slot_that_comes_again_has_a_pod_of_another_name() -> None:
    world = running(spared())
    world.pod(4, phase="Failed", exit_code=1)
    world.write()
    world.spec = spared(spares=0)
    world.settle()
    world.spec = spared(spares=1)
    world.settle()
    assert world.status.incarnations == "0*4,2"


def test_a_spare_with_a_rank_stays_until_a_round_can_do_without_it() -> None:
    world = running(spared())
    world.pod(1, phase="Failed", exit_code=137)
    world.write()
    world.pod(1)
    world.agent(1)
    for slot in (0, 2, 3, 4):
        world.obey(slot, step=12, resumed=10)
    world.spec = spared(spares=0)
    world.settle()
    assert world.status.incarnations == "0,1,0*3"
    world.agent(2, verdict=verdict(2, round=2), round=2)
    world.settle()
    assert (world.status.roundMap, world.status.incarnations) == ("0-3", "0,1,0*2")


def test_an_open_round_stays_as_it_is_whatever_becomes_of_spares() -> None:
    world = opened(spared())
    before = (world.status.round, world.status.roundMap, world.status.roundStore)
    world.agent(4, next_store=None, joined=False, silent_s=500.0)
    world.settle()
    assert (world.status.round, world.status.roundMap, world.status.roundStore) == before
