"""Silence that a neighbour confirms."""

from __future__ import annotations

import pytest

from tests.planning.world import World, job_spec, running
from trainmaster.contract.wire import Cause
from trainmaster_operator.api.compact_lists import unpack_counts


def lost(world: World) -> list[int]:
    """Slots whose pods are replaced."""
    world.write()
    return [slot for slot, count in enumerate(unpack_counts(world.status.incarnations)) if count]


def silent(world: World, *slots: int, for_s: float = 2.5) -> None:
    for slot in slots:
        world.agent(slot, silent_s=for_s)


def test_a_silent_agent_that_its_neighbour_misses_too_is_lost_soon() -> None:
    world = running()
    silent(world, 2, for_s=1.5)
    world.agent(1, neighbour_lost=2)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(0.5)
    silent(world, 2, for_s=2.0)
    assert lost(world) == [2]
    failure = world.status.lastFailure
    assert failure is not None
    assert failure.cause == Cause.AGENT_LOST.value
    assert "the pod that watches it cannot reach it" in failure.message


def test_neither_signal_is_enough_alone() -> None:
    world = running()
    silent(world, 2)
    assert lost(world) == []
    silent(world, 2, for_s=0.1)
    world.agent(1, neighbour_lost=2)
    assert lost(world) == []


@pytest.mark.parametrize(
    ("witness", "accuses", "fields"),
    [
        (0, 2, {}),  # not its neighbour
        (1, 3, {}),  # another one than the silent one
        (1, 2, {"silent_s": 2.5}),  # we don't hear the witness either
        (1, 2, {"round": 0}),  # it speaks of another round
    ],
)
def test_a_witness_counts_only_for_its_own_neighbour_in_this_round(
    witness: int, accuses: int, fields: dict[str, float]
) -> None:
    world = running(job_spec(7))
    silent(world, 2)
    world.agent(witness, neighbour_lost=accuses, **fields)
    assert lost(world) == []


def test_the_ring_closes() -> None:
    world = running()
    silent(world, 0)
    world.agent(3, neighbour_lost=0)
    assert lost(world) == [0]


def test_neighbours_that_die_together_are_lost_together() -> None:
    world = running(job_spec(7))
    silent(world, 6, 0)
    world.agent(5, neighbour_lost=6)
    assert lost(world) == [0, 6]


def test_of_two_silent_ones_only_the_one_with_a_witness_is_lost() -> None:
    world = running(job_spec(7))
    silent(world, 2, 5)
    world.agent(1, neighbour_lost=2)
    assert lost(world) == [2]


def test_when_many_nodes_fall_silent_together_the_network_is_suspected() -> None:
    world = running(job_spec(4))
    for slot in world.slots:
        world.pod(slot, node=f"n{slot}")
    silent(world, 1, 2)
    world.agent(0, neighbour_lost=1)
    assert lost(world) == []


def test_half_of_the_agents_may_be_lost_with_one_node() -> None:
    world = running(job_spec(4))
    for slot in world.slots:
        world.pod(slot, node=f"n{slot // 2}")
    silent(world, 2, 3)
    world.agent(1, neighbour_lost=2)
    assert lost(world) == [2, 3]


def test_a_machine_that_holds_everybody_is_no_node_beside_others() -> None:
    world = running(job_spec(4))
    for slot in world.slots:
        world.pod(slot, node="only")
    silent(world, 2, 3)
    world.agent(1, neighbour_lost=2)
    assert lost(world) == []


def test_agents_that_report_seldom_are_given_longer() -> None:
    world = running(job_spec(7))
    world.report_interval_s = 1.0
    world.agent(1, neighbour_lost=2)
    silent(world, 2, for_s=3.9)
    assert lost(world) == []
    silent(world, 2, for_s=4.0)
    assert lost(world) == [2]
