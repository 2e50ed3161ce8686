"""What an agent is told."""

from __future__ import annotations

import pytest

from tests.planning.world import World, job_spec, opened, pending, running, script_spec
from trainmaster.contract.wire import Directive, DirectiveState
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.rounds.directives import directive


def told(world: World, slot: int = 0) -> Directive:
    return directive(world.spec, world.status, world.observed(), slot)


def test_without_a_round_an_agent_waits() -> None:
    world = pending()
    assert (told(world).state, told(world).round, told(world).assignment) == (DirectiveState.WAIT, 0, None)


def test_a_round_that_forms_holds_its_agents() -> None:
    world = running()
    world.pod(1, phase="Failed")
    world.write()
    assert (told(world).state, told(world).round) == (DirectiveState.HOLD, 2)


def test_an_open_round_assigns_each_slot_its_ranks() -> None:
    spec = job_spec(
        3, ranks=2, training={"data": {"path": "x"}, "steps": 9, "batch": {"global": 6}, "parallelism": {"dpShard": 2}}
    )
    world = opened(spec)
    directives = [told(world, slot) for slot in world.slots]
    assert {d.state for d in directives} == {DirectiveState.RUN}
    assignments = [d.assignment for d in directives if d.assignment]
    assert [(a.first_rank, a.ranks, a.group_rank) for a in assignments] == [(0, 2, 0), (2, 2, 1), (4, 2, 2)]
    assert {(a.world_size, a.group_world_size, a.round, a.restart_count) for a in assignments} == {(6, 3, 1, 0)}
    assert f"{assignments[0].store.host}:{assignments[0].store.port}" == world.status.roundStore
    assert assignments[0].mesh == {"dpReplicate": 3, "dpShard": 2}
    assert [d.keep_store for d in directives] == [True, True, False]


def test_a_script_has_no_mesh() -> None:
    world = opened(script_spec(1))
    assignment = told(world).assignment
    assert assignment is not None
    assert (assignment.mesh, assignment.resume) == ({}, "Auto")


def test_a_tag_names_the_content_and_not_the_leader() -> None:
    world = opened()
    first = told(world)
    world.epoch = 9
    second = told(world)
    assert (second.tag, second.epoch) == (first.tag, 9)
    world.status = world.status.model_copy(update={"stopAt": 12})
    assert told(world).tag != first.tag
    assert told(world).stop_at == 12


def test_progress_does_not_change_a_directive() -> None:
    world = opened()
    before = told(world)
    for slot in world.slots:
        world.obey(slot, step=50, resumed=0)
    world.settle()
    assert told(world) == before


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_job_that_is_over_ends_its_agents(phase: JobPhase) -> None:
    world = running()
    world.status = world.status.model_copy(update={"phase": phase})
    assert (told(world).state, told(world).keep_store) == (DirectiveState.FINISH, False)


def test_a_deleted_job_ends_its_agents() -> None:
    world = running()
    world.deleting = True
    assert told(world).state is DirectiveState.FINISH


def test_a_suspended_job_starts_nobody_and_kills_nobody_of_its_last_round() -> None:
    world = running()
    world.status = world.status.model_copy(update={"phase": JobPhase.SUSPENDED})
    assert (told(world).state, told(world).round) == (DirectiveState.HOLD, world.status.round)


@pytest.mark.parametrize(("slots", "interval_s"), [(1, 0.5), (100, 0.5), (1000, 5.0)])
def test_the_rate_of_reports_is_bounded(slots: int, interval_s: float) -> None:
    world = pending(job_spec(slots, training={"data": {"path": "x"}, "steps": 9, "batch": {"global": slots}}))
    assert told(world).report_interval_s == interval_s
