"""The store behind its socket: what the conformance suite can't see from one side."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.examples import pod
from trainmaster_operator.cluster.port import BOOKMARK, LEASE, POD, Invalid, Unavailable
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_client import SocketCluster
from trainmaster_operator.local.api_server.store_server import BOOKMARK_EVERY_S, StoreServer


@asynccontextmanager
async def served(bookmark_every_s: float = BOOKMARK_EVERY_S) -> AsyncIterator[tuple[StoreServer, SocketCluster]]:
    with tempfile.TemporaryDirectory() as folder:
        server = StoreServer(MemoryStore(), Path(folder) / "store.sock", bookmark_every_s=bookmark_every_s)
        await server.start()
        client = SocketCluster(server.path)
        try:
            yield server, client
        finally:
            await client.close()
            await server.close()


def run(test: Callable[[StoreServer, SocketCluster], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with served() as (server, client):
            await test(server, client)

    asyncio.run(inside())


def test_the_socket_is_for_its_owner_alone() -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
        os.chmod(server.path.parent, 0o755)
        with pytest.raises(PermissionError, match="0700"):
            await StoreServer(MemoryStore(), server.path.parent / "other.sock").start()

    run(test)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def inside() -> None:
        client = SocketCluster(Path("/does/not/exist.sock"))
        for call in (client.list(POD), client.create(POD, pod("s", "a")), anext(client.watch(POD, "0"))):
            with pytest.raises(Unavailable):
                await call
        await client.close()

    asyncio.run(inside())


def test_a_watch_of_a_quiet_store_hears_bookmarks_and_goes_on() -> None:
    async def inside() -> None:
        async with served(bookmark_every_s=0.01) as (_, client):
            created = await client.create(POD, pod("s", "a"))
            version = created["metadata"]["resourceVersion"]
            stream = client.watch(POD, version)
            for _ in range(2):
                told = await anext(stream)
                assert (told.type, told.object["metadata"]) == (BOOKMARK, {"resourceVersion": version})
            await client.create(POD, pod("s", "b"))
            async for told in stream:
                if told.type != BOOKMARK:
                    assert told.object["metadata"]["name"] == "b"
                    return

    asyncio.run(inside())


def test_a_server_that_goes_away_ends_watches_and_calls() -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        await client.create(POD, pod("s", "a"))
        stream = client.watch(POD, "0")
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await server.close()
        with pytest.raises((Unavailable, StopAsyncIteration)):
            await waiting
        with pytest.raises(Unavailable):
            await client.get(POD, "s", "a")

    run(test)


def test_a_client_that_leaves_frees_its_watch() -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        await client.create(POD, pod("s", "a"))
        stream = client.watch(POD, "0")
        await anext(stream)
        (task,) = server._watches
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.wait([task])
        assert not server.store._histories[POD].cursors

    run(test)


def test_large_objects_pass_in_both_directions_and_through_a_watch() -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        made = pod("s", "a")
        made["metadata"]["annotations"] = {"large": "ü" * 1_000_000}
        stored = await client.create(POD, made)
        assert stored["metadata"]["annotations"] == made["metadata"]["annotations"]
        event = await anext(client.watch(POD, "0"))
        assert event.object == stored

    run(test)


def test_many_calls_at_once_are_all_answered() -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        await asyncio.gather(*(client.create(POD, pod("s", f"p{index}")) for index in range(200)))
        assert len((await client.list(POD)).items) == 200

    run(test)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"kind": "Pod", "name": 1}', b"\xff"])
@pytest.mark.parametrize("verb", ["get", "create", "watch"])
def test_a_malformed_request_is_invalid_and_does_no_harm(verb: str, body: bytes) -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.path))) as session,
            session.post(f"http://store/v1/{verb}", data=body) as answer,
        ):
            assert answer.status == Invalid.code
            assert json.loads(await answer.read())["reason"] == Invalid.reason
        assert (await client.list(POD)).items == []

    run(test)


def test_an_outage_refuses_calls_and_breaks_watches_until_it_is_over() -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        await client.create(POD, pod("s", "a"))
        watch = client.watch(POD, "0")
        await anext(watch)
        server.trouble.refuse_for(3600)
        with pytest.raises((Unavailable, StopAsyncIteration)):
            await anext(watch)
        for call in (client.get(POD, "s", "a"), client.create(POD, pod("s", "b")), anext(client.watch(POD, "0"))):
            with pytest.raises(Unavailable):
                await call
        server.trouble.refuse_for(0)
        assert [obj["metadata"]["name"] for obj in (await client.list(POD)).items] == ["a"]

    run(test)


def test_a_client_may_be_ended_by_a_write_that_took_effect() -> None:
    async def test(server: StoreServer, client: SocketCluster) -> None:
        seen: list[int] = []

        async def ended() -> None:
            seen.append(len(server.store.list(POD).items))

        server.trouble.after_writes(2, ended)
        await client.create(POD, pod("s", "a"))
        await client.get(POD, "s", "a")
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": LEASE, "metadata": {"name": "l", "namespace": "s"}}
        await client.create(LEASE, lease)
        assert seen == []
        await client.create(POD, pod("s", "b"))
        assert seen == [2]  # it was done, and who asked for it hasn't heard
        await client.create(POD, pod("s", "c"))
        assert seen == [2]

    run(test)
