"""The conformance suite over the memory store, directly and through its socket."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.cluster.conformance import SCENARIOS, Scenario, World
from tests.cluster.scenario import forgotten_by
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_client import SocketCluster
from trainmaster_operator.local.api_server.store_server import StoreServer


@asynccontextmanager
async def memory() -> AsyncIterator[World]:
    store = MemoryStore()
    yield World(MemoryCluster(store), "space", collects_garbage=True, forgotten=forgotten_by(store))


@asynccontextmanager
async def socket() -> AsyncIterator[World]:
    store = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:  # short: a unix socket's path has at most 107 bytes
        path = Path(folder) / "store.sock"
        server = StoreServer(store, path)
        await server.start()
        cluster = SocketCluster(path)
        try:
            yield World(cluster, "space", collects_garbage=True, forgotten=forgotten_by(store))
        finally:
            await cluster.close()
            await server.close()
            assert os.listdir(folder) == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("world", [memory, socket], ids=lambda world: world.__name__)
def test_conformance(world: Callable[[], AbstractAsyncContextManager[World]], scenario: Scenario) -> None:
    async def run() -> None:
        async with world() as there:
            await scenario(there)

    asyncio.run(run())
