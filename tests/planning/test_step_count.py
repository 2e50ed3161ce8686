"""Steps of scripts whose optimizer counts none: agents count from 0 in each process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, opened, running, script_spec, store, verdict
from trainmaster.contract.wire import Trained
from trainmaster_operator.planning.facts import script_step_count


def crashed_at(step: int, saved: int) -> World:
    """A script of two ranks has saved a step, made more, and crashed; its next round has opened."""
    world = running(script_spec(2), step=step)
    for slot in range(2):
        world.obey(slot, step=step, last_save=saved if slot == 0 else 0)
    world.write()
    return crashes(world)


def crashes(world: World) -> World:
    world.now += 1.0
    world.agent(1, verdict=verdict(1, round=world.status.round))
    world.write()
    return world


def steps(world: World, count: int, **fields: Any) -> None:
    """Both ranks make so many steps in their processes; what `fields` say rank 0 alone does."""
    trained = (Trained(world.status.round, first_step_s=0.0, step=count),)
    for slot in range(2):
        world.obey(slot, step=count, **{"trained": trained, **(fields if slot == 0 else {})})
    for _ in range(3):
        world.write()


def test_a_script_that_loads_goes_on_from_its_last_save_in_the_count_of_all_ranks() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 1, loaded=True)
    (recovery,) = world.status.recoveries
    assert (recovery.resumedStep, recovery.lostSteps) == (256, 44)
    assert world.status.progress.step == 257
    world.now += 10.0
    steps(world, 384, loaded=True)
    assert (world.status.progress.step, world.status.progress.highestStep) == (640, 640)


def test_steps_that_are_done_again_are_not_useful_and_later_ones_are() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 1, loaded=True)
    before = world.status.usefulSeconds
    world.now += 9.6
    for slot in range(2):
        world.obey(slot, step=97, loaded=True)
    world.write()
    assert world.status.usefulSeconds - before == pytest.approx(9.6 * 53 / 96), "steps 301 to 353 of 258 to 353"


def test_a_save_after_a_resume_counts_from_where_the_process_began() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 100, loaded=True, last_save=64)
    assert world.status.progress.lastSave == 320
    crashes(world)
    steps(world, 5, loaded=True)
    assert world.status.progress.step == 325


def test_a_script_that_loads_nothing_begins_at_step_0_and_does_not_tell_where_it_resumed() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 5)
    assert (world.status.progress.step, world.status.progress.highestStep) == (5, 300)
    (recovery,) = world.status.recoveries
    assert (recovery.resumedStep, recovery.lostSteps) == (None, None)


@pytest.mark.parametrize(("saved", "useful_s"), [(256, 0.0), (0, 9.5)])
def test_steps_count_as_useful_where_nobody_knows_whether_they_are_done_again(saved: int, useful_s: float) -> None:
    """A script that has saved by torch.save and loads nothing begins again. One that never has may do anything."""
    world = crashed_at(300, saved)
    steps(world, 1)
    before = world.status.usefulSeconds
    world.now += 9.5
    steps(world, 96)
    assert world.status.usefulSeconds - before == pytest.approx(useful_s)
    assert script_step_count.is_known(world.status) is bool(saved)


def test_a_file_that_is_loaded_before_the_script_has_saved_any_is_no_resume() -> None:
    world = crashed_at(50, saved=0)
    steps(world, 50, loaded=True)
    assert (world.status.progress.step, world.status.progress.highestStep) == (50, 50)


def test_an_optimizer_that_counts_its_steps_is_believed() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 270, loaded=True, resumed=250)
    world.agent(1, resumed_step=250)
    world.write()
    assert world.status.progress.step == 270


def test_a_failure_is_told_at_the_step_of_the_job() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 10, loaded=True)
    world.agent(1, verdict=verdict(1, round=world.status.round, step=10))
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.step == 266


def test_a_round_that_opens_later_begins_at_the_save_that_was_known() -> None:
    world = crashed_at(300, saved=256)
    assert (world.status.roundLastSave, opened(script_spec(2)).status.roundLastSave) == (256, 0)


@pytest.mark.parametrize("heard", [0, 250])
@pytest.mark.parametrize("at_once", [True, False], ids=["opens at once", "forms first"])
def test_a_save_that_its_agent_had_not_told_when_the_round_ended_counts_all_the_same(heard: int, at_once: bool) -> None:
    world = running(script_spec(2), step=255)
    world.obey(0, step=255, last_save=heard)
    world.obey(1, step=255, next_store=None)
    world.write()
    if not at_once:
        world.agent(0, next_store=None)
    crashes(world)
    assert (world.status.round, bool(world.status.roundStore)) == (2, at_once)
    world.agent(0, next_store=store(0, 99))
    world.settle()
    steps(world, 1, loaded=True, saved_before=256)
    (recovery,) = world.status.recoveries
    assert (recovery.resumedStep, world.status.progress.step) == (256, 257)


def test_a_save_that_was_told_late_is_where_a_third_round_goes_on_that_follows_before_another_save() -> None:
    world = crashed_at(255, saved=0)
    steps(world, 1, loaded=True, saved_before=256)
    crashes(world)
    steps(world, 1, loaded=True)
    assert world.status.progress.step == 257


def test_a_save_that_is_told_late_counts_from_where_its_own_process_began() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 60, loaded=True)
    crashes(world)
    steps(world, 1, loaded=True, saved_before=64)
    assert world.status.progress.step == 256 + 64 + 1


def test_what_was_known_is_not_undone_by_an_earlier_save_of_another_agent() -> None:
    world = crashed_at(300, saved=256)
    steps(world, 1, loaded=True, saved_before=200)
    assert world.status.progress.step == 257
