"""What is asked of an API server about nodes, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from tests.cluster.fake_api import Answer, FakeApi, as_json, fake_api, status
from trainmaster_operator.cluster.kubernetes_nodes import KubernetesNodes
from trainmaster_operator.cluster.nodes_port import NodeRecord
from trainmaster_operator.cluster.port import Conflict, Forbidden, NotFound, Object, Unavailable

TAINT = {"key": "k", "effect": "NoSchedule"}


def node(name: str, *taints: Object) -> Object:
    spec = {"taints": list(taints)} if taints else {}
    meta = {"name": name, "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": spec, "status": {"images": ["many"]}}


def run(answer: Answer, test: Callable[[FakeApi, KubernetesNodes], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with fake_api(answer) as api:
            await test(api, KubernetesNodes(api.cluster.connection))

    asyncio.run(inside())


def test_all_pages_of_nodes_are_read_and_little_of_each_is_kept() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        rest = "" if "continue" in request.query else "more"
        name = "b" if "continue" in request.query else "a"
        return as_json({"metadata": {"continue": rest}, "items": [node(name, TAINT)]})

    async def test(api: FakeApi, nodes: KubernetesNodes) -> None:
        created = "2026-01-01T00:00:00Z"
        assert await nodes.list() == [NodeRecord(name, "7", created, (TAINT,)) for name in "ab"]
        assert [(seen.method, seen.path) for seen in api.seen] == [("GET", "/api/v1/nodes")] * 2

    run(answer, test)


def test_taints_are_written_for_the_version_that_was_read() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return as_json(node("a b"))

    async def test(api: FakeApi, nodes: KubernetesNodes) -> None:
        found = await nodes.get("a b")
        await nodes.set_taints(found, (TAINT,))
        await nodes.set_taints(found, ())
        assert {seen.path for seen in api.seen} == {"/api/v1/nodes/a%20b"}
        version = {"metadata": {"resourceVersion": "7"}}
        bodies = [seen.body for seen in api.seen[1:]]
        assert bodies == [{**version, "spec": {"taints": [TAINT]}}, {**version, "spec": {"taints": None}}]
        assert api.seen[1].headers["Content-Type"] == "application/merge-patch+json"

    run(answer, test)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(403, "Forbidden", Forbidden), (404, "NotFound", NotFound), (409, "Conflict", Conflict)],
)
def test_a_refusal_is_told_by_its_kind(code: int, reason: str, error: type[Exception]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return as_json(status(code, reason, "no"), code)

    async def test(api: FakeApi, nodes: KubernetesNodes) -> None:
        known = NodeRecord("a", "7", "", ())
        for call in (nodes.list, lambda: nodes.get("a"), lambda: nodes.set_taints(known, ())):
            with pytest.raises(error):
                await call()

    run(answer, test)


def test_an_answer_that_is_no_node_is_none_at_all() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return as_json({"items": [{}]})

    async def test(api: FakeApi, nodes: KubernetesNodes) -> None:
        for call in (nodes.list, lambda: nodes.get("a")):
            with pytest.raises(Unavailable):
                await call()

    run(answer, test)
