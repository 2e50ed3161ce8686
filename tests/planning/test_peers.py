"""Whose memory keeps copies of whose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, pending, running, verdict
from trainmaster.contract.wire import StoreAddress
from trainmaster_operator.planning.facts.view import look
from trainmaster_operator.planning.rounds import memory_peers
from trainmaster_operator.planning.rounds.directives import directive

STORAGE = {"directory": "/checkpoints"}
RAM = {**STORAGE, "ram": {"every": 1}}


def on_nodes(nodes: list[str], **spec: Any) -> World:
    training = {"data": {"path": "x"}, "steps": 9, "batch": {"global": len(nodes)}}
    world = pending(job_spec(len(nodes), training=training, **{"checkpoint": RAM, **spec}))
    for slot, node in enumerate(nodes):
        world.pod(slot, node=node)
    return world


def shift(world: World, order: list[int] | None = None) -> int:
    view = look(world.spec, world.status, world.observed(), world.now)
    return memory_peers.shift(view, order if order is not None else list(world.slots))


def pairs(world: World, order: list[int]) -> list[tuple[str, str]]:
    """(node of a place, node of whoever keeps its copies)."""
    nodes = [world.pods[slot].node for slot in order]
    distance = shift(world, order)
    return [(node, nodes[(place + distance) % len(order)]) for place, node in enumerate(nodes)]


@pytest.mark.parametrize(
    "nodes",
    ["ab", "aabb", "aaabbbccc", "abab", "abcabc", "aabbc", "a" * 4 + "b" * 4 + "c" * 8, "abc" * 33, "ab" * 500],
)
def test_a_copy_lies_on_another_node_where_that_is_possible(nodes: str) -> None:
    world = on_nodes(list(nodes))
    assert not [pair for pair in pairs(world, list(world.slots)) if pair[0] == pair[1]]


def test_it_follows_the_order_of_the_round_and_not_that_of_the_slots() -> None:
    world = on_nodes(list("abab"))
    order = [0, 2, 1, 3]  # on a, a, b, b
    assert not [pair for pair in pairs(world, order) if pair[0] == pair[1]]


def test_where_it_is_impossible_the_fewest_copies_share_a_node_with_their_original() -> None:
    world = on_nodes(list("aaaab"))
    shared = [pair for pair in pairs(world, list(world.slots)) if pair[0] == pair[1]]
    assert len(shared) == 3
    assert shift(on_nodes(list("aaa"))) == 1  # another pod at least


NONE = [
    {**STORAGE, "ram": {"every": 0}},
    {**STORAGE, "ram": {"every": 1, "peers": 0}},
    {**STORAGE, "ram": {"limit": "0"}},
    {"ram": {"every": 1}},
]


@pytest.mark.parametrize("checkpoint", NONE, ids=str)
def test_without_a_reason_nobody_keeps_copies(checkpoint: dict[str, Any]) -> None:
    assert shift(on_nodes(list("ab"), checkpoint=checkpoint)) == 0


def test_a_pod_alone_has_no_peer() -> None:
    assert shift(on_nodes(["a"])) == 0


def address(slot: int) -> StoreAddress:
    return StoreAddress(f"10.0.0.{slot}", 7000 + slot)


def told(world: World) -> dict[int, list[StoreAddress]]:
    found = {}
    for slot in world.slots:
        assignment = directive(world.spec, world.status, world.observed(), slot).assignment
        assert assignment is not None
        found[slot] = assignment.peers
    return found


def with_addresses(world: World) -> World:
    for slot in world.slots:
        world.agent(slot, peer=address(slot))
    return world


def test_each_agent_is_told_one_address_and_no_two_the_same() -> None:
    world = with_addresses(on_nodes(list("aabbc")))
    world.settle()
    found = told(world)
    assert sorted(peer.port for (peer,) in found.values()) == [7000, 7001, 7002, 7003, 7004]
    for slot, (peer,) in found.items():
        assert world.pods[slot].node != world.pods[peer.port - 7000].node


def test_the_status_holds_one_number_and_no_secret() -> None:
    world = with_addresses(on_nodes(list("aabb")))
    world.settle()
    assert world.status.roundPeers == 2
    assert "secret" not in world.status.model_dump_json().lower()


def test_a_leader_that_has_not_heard_the_peer_tells_no_address() -> None:
    world = with_addresses(on_nodes(list("ab")))
    world.settle()
    del world.agents[1]
    assert told(world) == {0: [], 1: [address(0)]}


def test_the_next_round_chooses_anew() -> None:
    world = with_addresses(running(job_spec(4, checkpoint=RAM)))
    for slot, node in enumerate("aaaa"):
        world.pod(slot, node=node)
    world.agent(2, verdict=verdict())
    for slot, node in enumerate("aabb"):
        world.pod(slot, node=node)
    world.settle()
    assert (world.status.round, world.status.roundPeers) == (2, 2)
