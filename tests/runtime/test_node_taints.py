"""The taint on suspect nodes: put where that is allowed, taken away later, and nobody else's is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.runtime.fake_nodes import FakeNodes
from trainmaster_operator.cluster.nodes_port import NodeRecord
from trainmaster_operator.cluster.port import Conflict, Forbidden, Invalid, Object, Unavailable
from trainmaster_operator.runtime.nodes import node_taints
from trainmaster_operator.runtime.nodes.node_taints import TAINT, NodeTaints, remove_all
from trainmaster_operator.runtime.virtual_clock import VirtualClock, run_virtual

THEIRS: Object = {"key": "example.com/repair", "value": "soon", "effect": "NoExecute"}


class Leader:
    def check(self) -> None:
        """It leads."""


class Site:
    """Nodes a and b, the second with a taint of somebody else, and an operator that may taint them or not."""

    def __init__(self, *, may: bool = True) -> None:
        self.nodes = FakeNodes()
        self.nodes.add("a")
        self.nodes.add("b", THEIRS)
        self.scores: dict[str, float] = {}
        self.said: list[str] = []
        self.clock = VirtualClock()
        score = lambda node: self.scores.get(node, 0.0)  # noqa: E731
        given = self.nodes if may else None
        self.taints = NodeTaints(given, self.clock, Leader(), score, self.said.append)  # type: ignore[arg-type]

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            loop = asyncio.ensure_future(self.taints.run())
            await work()
            loop.cancel()

        run_virtual(main(), self.clock)


def test_a_suspect_node_gets_our_taint_beside_those_of_others() -> None:
    site = Site()

    async def work() -> None:
        assert await site.taints.keep_off(["a", "b"]) == []
        assert site.nodes.taints("a") == (TAINT,)
        assert site.nodes.taints("b") == (THEIRS, TAINT)
        writes = len(site.nodes.calls)
        assert await site.taints.keep_off(["a"]) == []
        assert site.nodes.calls[writes:] == ["get a"]  # it has it already

    site.run(work)


def test_a_taint_that_somebody_puts_meanwhile_is_kept() -> None:
    site = Site()
    site.nodes.meddle = THEIRS

    async def work() -> None:
        assert await site.taints.keep_off(["a"]) == []

    site.run(work)
    assert site.nodes.taints("a") == (THEIRS, TAINT)


def test_the_taint_goes_when_the_suspicion_has_decayed_and_others_stay() -> None:
    site = Site()
    site.scores["b"] = 1.0

    async def work() -> None:
        await site.taints.keep_off(["b"])
        await asyncio.sleep(10 * node_taints.STAYS_S)
        assert site.nodes.taints("b") == (THEIRS, TAINT)
        site.scores["b"] = 0.5
        await asyncio.sleep(node_taints.LOOK_S)
        assert site.nodes.taints("b") == (THEIRS,)

    site.run(work)


def test_a_node_that_is_dead_and_not_suspect_is_kept_off_for_minutes() -> None:
    site = Site()

    async def work() -> None:
        await site.taints.keep_off(["a"])
        await asyncio.sleep(node_taints.STAYS_S - node_taints.LOOK_S)
        assert site.nodes.taints("a") == (TAINT,)
        await asyncio.sleep(2 * node_taints.LOOK_S)
        assert site.nodes.taints("a") == ()

    site.run(work)


def test_a_new_leader_takes_away_what_the_one_before_put() -> None:
    site = Site()
    site.nodes.add("c", TAINT, THEIRS)

    async def work() -> None:
        await asyncio.sleep(node_taints.STAYS_S - 1)
        assert site.nodes.taints("c") == (TAINT, THEIRS)
        await asyncio.sleep(2 * node_taints.LOOK_S)
        assert site.nodes.taints("c") == (THEIRS,)

    site.run(work)


def test_a_node_that_cannot_be_written_does_not_keep_the_taint_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    set_taints = site.nodes.set_taints

    async def only_b(node: NodeRecord, taints: tuple[Object, ...]) -> None:
        if node.name == "a" and broken:
            raise Invalid("somebody's webhook does not like this node")
        await set_taints(node, taints)

    broken = False
    monkeypatch.setattr(site.nodes, "set_taints", only_b)

    async def work() -> None:
        nonlocal broken
        await site.taints.keep_off(["a", "b"])
        broken = True
        await asyncio.sleep(node_taints.STAYS_S + 2 * node_taints.LOOK_S)
        assert site.nodes.taints("a") == (TAINT,)
        assert site.nodes.taints("b") == (THEIRS,)
        broken = False
        await asyncio.sleep(2 * node_taints.LOOK_S)
        assert site.nodes.taints("a") == ()

    site.run(work)


def let_answers_wait(site: Site, seconds: float) -> None:
    """Let each read of a node take so long."""
    get = site.nodes.get

    async def slow(name: str) -> NodeRecord:
        found = await get(name)
        await asyncio.sleep(seconds)
        return found

    site.nodes.get = slow  # type: ignore[method-assign]


def test_two_that_clear_one_node_at_the_same_time_both_succeed() -> None:
    site = Site()

    async def work() -> None:
        await site.taints.keep_off(["a"])
        let_answers_wait(site, 0.1)
        await asyncio.gather(site.taints.allow(["a"]), site.taints.allow(["a"]))
        assert site.nodes.taints("a") == ()
        assert site.taints.tainted == ()

    site.run(work)


def test_a_node_that_a_job_frees_while_the_operator_clears_it_does_not_end_the_operator() -> None:
    site = Site()

    async def work() -> None:
        clearing = asyncio.ensure_future(site.taints.run())
        await site.taints.keep_off(["a"])
        let_answers_wait(site, 10.0)
        await asyncio.sleep(node_taints.STAYS_S - 5.0)
        await site.taints.allow(["a"])
        await asyncio.sleep(node_taints.LOOK_S)
        assert not clearing.done()
        assert site.taints.tainted == ()
        clearing.cancel()

    run_virtual(work(), site.clock)


def test_without_the_right_all_nodes_are_left_to_the_pods_and_that_is_said_once() -> None:
    site = Site(may=False)

    async def work() -> None:
        assert await site.taints.keep_off(["a", "b"]) == ["a", "b"]
        assert await site.taints.keep_off(["a"]) == ["a"]
        await asyncio.sleep(1000)

    site.run(work)
    assert site.said == [node_taints.MISSING]
    assert site.nodes.calls == []


def test_a_right_that_turns_out_to_be_missing_is_said_once_and_asked_for_again_later() -> None:
    site = Site()
    site.nodes.refusal = Forbidden("nodes is forbidden")

    async def work() -> None:
        assert await site.taints.keep_off(["a"]) == ["a"]
        tried = len(site.nodes.calls)
        assert await site.taints.keep_off(["a"]) == ["a"]
        assert len(site.nodes.calls) == tried
        site.nodes.refusal = None
        await asyncio.sleep(node_taints.ASK_AGAIN_S)
        assert await site.taints.keep_off(["a"]) == []

    site.run(work)
    assert site.said == [f"{node_taints.MISSING}: nodes is forbidden"]
    assert site.nodes.taints("a") == (TAINT,)


def test_a_node_that_is_gone_needs_no_taint_and_one_that_can_not_be_written_is_left_to_the_pods() -> None:
    site = Site()

    async def work() -> None:
        assert await site.taints.keep_off(["gone"]) == []
        site.nodes.refusal = Unavailable("no answer")
        assert await site.taints.keep_off(["a"]) == ["a"]

    site.run(work)


def test_an_uninstall_takes_our_taint_from_all_nodes_and_names_those_that_keep_it() -> None:
    nodes = FakeNodes()
    nodes.add("a", TAINT)
    nodes.add("b", THEIRS, TAINT)
    nodes.add("c", THEIRS)
    assert asyncio.run(remove_all(nodes)) == (["a", "b"], [])
    assert [nodes.taints(name) for name in "abc"] == [(), (THEIRS,), (THEIRS,)]

    nodes.add("a", TAINT)

    async def refuse(node: object, taints: object) -> None:
        raise Conflict("it changes all the time")

    nodes.set_taints = refuse  # type: ignore[method-assign]
    assert asyncio.run(remove_all(nodes)) == (["a"], ["a"])
