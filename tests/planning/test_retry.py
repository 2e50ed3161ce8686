"""What the next round does otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import TRAINING, World, job_spec, recovered, running, script_spec, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import JobPhase, Restarts
from trainmaster_operator.planning.rounds.directives import directive

SKIP = {"rules": [{"causes": ["Diverged"], "action": "SkipData"}]}


def fails(world: World, rank: int = 1, **last_words: Any) -> None:
    world.agent(rank, verdict=verdict(rank, round=world.status.round, **last_words))
    world.write()


def batch(size: int, micro: int | None = None) -> dict[str, Any]:
    return {**TRAINING, "batch": {"global": size, **({"micro": micro} if micro else {})}}


def test_a_device_out_of_memory_halves_the_micro_batch_until_it_is_one() -> None:
    world = running(job_spec(4, training=batch(4 * 12)))
    divisors = []
    for _ in range(3):
        fails(world, cause=Cause.OUT_OF_MEMORY, on_device=True)
        divisors.append(world.status.microDivisor)
        recovered(world, step=0)
        told = directive(world.spec, world.status, world.observed(), 0).assignment
        assert told is not None
        assert told.micro_divisor == divisors[-1]
    assert divisors == [2, 4, 8]  # 12 -> 6 -> 3 -> 1
    assert world.status.restarts == Restarts(free=3)
    fails(world, cause=Cause.OUT_OF_MEMORY, on_device=True)
    assert (world.status.microDivisor, world.status.restarts) == (8, Restarts(inPlace=1, free=3))


@pytest.mark.parametrize(("revision", "divisor"), [("job-a", 2), ("job-b", 1)], ids=["as before", "edited"])
def test_a_resumed_job_keeps_smaller_micro_batches_unless_it_was_edited(revision: str, divisor: int) -> None:
    world = World(job_spec(4), revision="job-a")
    world.settle()
    for slot in world.slots:
        world.pod(slot)
    world.status = world.status.model_copy(update={"microDivisor": 2, "phase": JobPhase.SUSPENDED})
    world.revision = revision
    world.settle()
    assert (world.status.phase, world.status.revision) == (JobPhase.PENDING, revision)
    assert world.status.microDivisor == divisor


def test_where_nothing_is_left_to_halve_the_ladder_decides() -> None:
    world = running(job_spec(4, training=batch(8, micro=1)))
    fails(world, cause=Cause.OUT_OF_MEMORY, on_device=True)
    assert (world.status.microDivisor, world.status.restarts) == (1, Restarts(inPlace=1))


@pytest.mark.parametrize(
    "last_words",
    [{"cause": Cause.OUT_OF_MEMORY}, {"cause": Cause.CRASH, "on_device": True}],
    ids=["the host's memory", "no lack of memory"],
)
def test_only_the_devices_memory_is_a_matter_of_the_micro_batch(last_words: dict[str, Any]) -> None:
    world = running(job_spec(4))
    fails(world, **last_words)
    assert (world.status.microDivisor, world.status.restarts) == (1, Restarts(inPlace=1))


def test_a_scripts_batch_is_its_own_affair() -> None:
    world = running(script_spec(2))
    fails(world, cause=Cause.OUT_OF_MEMORY, on_device=True)
    assert (world.status.microDivisor, world.status.restarts) == (1, Restarts(inPlace=1))


def test_a_rule_may_say_otherwise_of_memory() -> None:
    rules = {"rules": [{"causes": ["OutOfMemory"], "action": "Fail"}]}
    world = running(job_spec(4, recovery=rules))
    fails(world, cause=Cause.OUT_OF_MEMORY, on_device=True)
    assert world.status.phase is JobPhase.FAILED


def test_two_ranks_that_ran_out_of_memory_together_halve_once() -> None:
    world = running(job_spec(4))
    world.agent(0, verdict=verdict(0, Cause.OUT_OF_MEMORY, on_device=True))
    fails(world, cause=Cause.OUT_OF_MEMORY, on_device=True)
    assert world.status.microDivisor == 2
    assert not world.plan().intent


def test_diverged_samples_are_left_out_by_rule_and_told_to_every_rank() -> None:
    world = running(job_spec(4, recovery=SKIP))
    fails(world, cause=Cause.DIVERGED, exit_code=92, samples=[840, 1680])
    assert (world.status.phase, world.status.skipped) == (JobPhase.RECOVERING, [[840, 1680]])
    assert world.status.restarts == Restarts(inPlace=1)
    recovered(world, step=12, resumed=0)
    told = [directive(world.spec, world.status, world.observed(), slot).assignment for slot in world.slots]
    assert [a.skipped for a in told if a is not None] == [[[840, 1680]]] * 4
    fails(world, cause=Cause.DIVERGED, exit_code=92, samples=[1680, 2520])
    assert world.status.skipped == [[840, 2520]]


def test_without_the_rule_a_job_that_diverged_fails() -> None:
    world = running(job_spec(4))
    fails(world, cause=Cause.DIVERGED, exit_code=92, samples=[840, 1680])
    assert (world.status.phase, world.status.skipped) == (JobPhase.FAILED, [])


def test_a_job_that_diverges_again_and_again_without_progress_fails_in_words() -> None:
    world = running(job_spec(4, recovery=SKIP))
    for number in range(1, 5):
        fails(world, cause=Cause.DIVERGED, exit_code=92, samples=[840 * number, 840 * (number + 1)])
        if world.status.phase is JobPhase.FAILED:
            break
        recovered(world, step=0)
    assert world.status.restarts == Restarts(inPlace=3)
    assert world.status.lastFailure is not None
    assert "training still diverges although 2520 samples are skipped" in world.status.lastFailure.message


@pytest.mark.parametrize("samples", [[], [5], [9, 9]])
def test_a_step_whose_samples_are_not_known_fails_the_job(samples: list[int]) -> None:
    world = running(job_spec(4, recovery=SKIP))
    fails(world, cause=Cause.DIVERGED, exit_code=92, samples=samples)
    assert world.status.phase is JobPhase.FAILED


def test_samples_that_are_left_out_already_are_not_what_it_was() -> None:
    world = running(job_spec(4, recovery=SKIP))
    fails(world, cause=Cause.DIVERGED, exit_code=92, samples=[840, 1680])
    recovered(world, step=12, resumed=0)
    fails(world, cause=Cause.DIVERGED, exit_code=92, samples=[840, 1680])
    assert world.status.phase is JobPhase.FAILED
