"""A job that waits for a person."""

from __future__ import annotations

from tests.planning.world import World, job_spec, recovered, running, verdict
from trainmaster.contract.wire import DirectiveState
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.rounds.directives import directive

RULES = {"rules": [{"name": "look", "causes": ["Crash"], "action": "Hold"}]}


def held(**fields: object) -> World:
    world = running(job_spec(recovery=RULES, **fields), step=10)
    world.agent(2, verdict=verdict(message="the loss of rank 2 is odd"))
    world.write()
    return world


def suspend(world: World, value: bool) -> None:
    world.spec = world.spec.model_copy(update={"suspend": value})


def test_a_held_job_ends_its_ranks_and_keeps_its_pods() -> None:
    world = held()
    assert (world.status.phase, world.status.round, world.status.roundStore) == (JobPhase.HELD, 2, "")
    for slot in world.slots:
        assert directive(world.spec, world.status, world.observed(), slot).state is DirectiveState.HOLD
    decision = world.plan()
    assert (decision.intent, decision.create, decision.delete) == (False, (), ())


def test_a_person_is_told_why_and_what_to_do() -> None:
    world = held()
    (condition,) = [c for c in world.status.conditions if c.type == "Held"]
    assert (condition.status, condition.reason) == ("True", "Crash")
    assert condition.message == "rank 2: the loss of rank 2 is odd; suspend and resume the job to continue it"
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rule == "look"


def test_a_held_job_waits_whatever_happens_to_its_pods() -> None:
    world = held()
    world.pod(1, phase="Failed", exit_code=137)
    del world.pods[3]
    world.agents = {}
    world.now += 100_000
    decision = world.plan()
    assert (decision.intent, decision.create) == (False, ())


def test_suspending_lets_the_pods_go_and_resuming_brings_fresh_ones() -> None:
    world = held()
    suspend(world, True)
    world.settle()
    assert world.status.phase is JobPhase.SUSPENDED
    assert len(world.plan().delete) == 4 or not world.pods
    suspend(world, False)
    world.settle()
    world.pods, world.agents = {}, {}
    recovered(world, step=12, resumed=10)
    assert world.status.phase is JobPhase.RUNNING
    (condition,) = [c for c in world.status.conditions if c.type == "Held"]
    assert condition.status == "False"


def test_a_held_job_is_still_bound_by_its_deadline() -> None:
    world = held(activeDeadlineSeconds=60)
    world.now += 100
    world.write()
    assert world.status.phase is JobPhase.FAILED


def test_what_a_person_has_looked_at_counts_afresh() -> None:
    rules = {"rules": [{"exitCodes": [9], "action": "Hold"}]}
    world = running(job_spec(2, recovery=rules))
    for code in (1, 1, 1, 9):
        world.agent(1, verdict=verdict(1, round=world.status.round, exit_code=code))
        world.write()
        if code == 1:
            recovered(world, step=0)
    assert world.status.phase is JobPhase.HELD
    for value in (True, False):
        suspend(world, value)
        world.settle()
    world.pods, world.agents = {}, {}
    recovered(world, step=0)
    world.agent(1, verdict=verdict(1, round=world.status.round))
    world.write()
    assert world.status.restarts.inPlace == 4
