"""What a scenario of the conformance suite has to work with. No test framework here: a scenario raises or returns.

Only what a real kube-apiserver with our CRD does, alone or (`collects_garbage`) beside kube-controller-manager. No
kubelet and no scheduler touch the Pods: one on a node (`nodeName` in its spec) is never ended by anyone, so a scenario
that deletes it with grace must delete it again with grace 0. Each scenario gets a namespace of its own, which exists
and is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.cluster.examples import event
from trainmaster_operator.cluster.port import BOOKMARK, DELETED, EVENT, ApiError, Cluster, Object, WatchEvent
from trainmaster_operator.local.api_server.memory_store import MemoryStore

GIVE_UP_S = 30.0  # a watch that says nothing for so long is broken


@dataclass
class World:
    cluster: Cluster
    namespace: str
    collects_garbage: bool  # a garbage collector runs
    forgotten: Callable[[], Awaitable[str]]  # gives a resourceVersion that the watch history of jobs has forgotten


Scenario = Callable[[World], Awaitable[None]]
SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


async def refused(error: type[ApiError], call: Awaitable[object]) -> None:
    try:
        await call
    except error:
        return
    raise AssertionError(f"accepted, but {error.__name__} was due")


Next = Callable[[], Awaitable[WatchEvent]]


@asynccontextmanager
async def watching(
    world: World, kind: str, since: str, labels: dict[str, str | None] | None = None
) -> AsyncIterator[Next]:
    """Gives a function that waits for the next event beside bookmarks."""
    stream = world.cluster.watch(kind, since, world.namespace, labels)

    async def following() -> WatchEvent:
        while True:
            told = await asyncio.wait_for(anext(stream), GIVE_UP_S)
            if told.type != BOOKMARK:
                return told

    try:
        yield following
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


async def now(world: World, kind: str) -> str:
    return (await world.cluster.list(kind, world.namespace)).resource_version


async def gone(world: World, kind: str, name: str) -> None:
    """Waits until the object doesn't exist."""
    listing = await world.cluster.list(kind, world.namespace)
    if all(item["metadata"]["name"] != name for item in listing.items):
        return
    async with watching(world, kind, listing.resource_version) as following:
        while True:
            told = await following()
            if told.type == DELETED and told.object["metadata"]["name"] == name:
                return


def names(items: list[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def forgotten_by(store: MemoryStore) -> Callable[[], Awaitable[str]]:
    """What a World over this store has for `forgotten`."""

    async def forgotten() -> str:
        version = str(store.version)
        store.create(EVENT, event("elsewhere", "a"))
        store.compact()
        return version

    return forgotten
