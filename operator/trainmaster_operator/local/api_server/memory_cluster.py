"""`Cluster` over a MemoryStore in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from trainmaster_operator.cluster.port import EVENT, Labels, Listing, Object, TokenReview, WatchEvent
from trainmaster_operator.local.api_server.memory_store import MemoryStore


class MemoryCluster:
    """Each method takes effect at once, without letting other tasks run. A test that wants delays wraps it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()

    async def list(self, kind: str, namespace: str | None = None, labels: Labels | None = None) -> Listing:
        return self.store.list(kind, namespace, labels)

    async def watch(
        self, kind: str, resource_version: str, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[WatchEvent]:
        cursor = self.store.watch(kind, resource_version, namespace, labels)
        try:
            while True:
                await cursor.ready.wait()
                for event in cursor.take():
                    yield event
        finally:
            cursor.close()

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.store.get(kind, namespace, name)

    async def create(self, kind: str, obj: Object) -> Object:
        return self.store.create(kind, obj)

    async def update(self, kind: str, obj: Object) -> Object:
        return self.store.update(kind, obj)

    async def update_status(self, kind: str, obj: Object) -> Object:
        return self.store.update_status(kind, obj)

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Object, resource_version: str | None = None
    ) -> Object:
        return self.store.patch(kind, namespace, name, patch, resource_version)

    async def apply(self, kind: str, obj: Object) -> Object:
        return self.store.apply(kind, obj)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        self.store.delete(kind, namespace, name, uid, grace_s)

    async def resize(self, namespace: str, name: str, uid: str, resources: Mapping[str, Object]) -> Object:
        return self.store.resize(namespace, name, uid, resources)

    async def evict(self, namespace: str, name: str) -> None:
        self.store.evict(namespace, name)

    async def events_about(self, namespace: str, uid: str) -> Sequence[Object]:
        events = self.store.list(EVENT, namespace).items
        return [event for event in events if (event.get("involvedObject") or {}).get("uid") == uid]

    async def review_token(self, token: str, audience: str) -> TokenReview | None:
        return None  # No tokens are issued here.

    async def list_before(
        self, kind: str, changes: int, namespace: str | None = None, labels: Labels | None = None
    ) -> Listing:
        """Return an older list, for `faulty`. This is not part of the port."""
        return self.store.list_before(kind, changes, namespace, labels)

    async def bind(self, namespace: str, name: str, node: str) -> Object:
        """Bind a pod to a node as a scheduler does, for the kubelets of local runs and of the simulation. This is
        not part of the port."""
        return self.store.bind(namespace, name, node)
