"""A cache of one kind of object, kept by list and watch, or by lists and what somebody else's watch feeds it.

A relist replaces the cache, so that what vanished while nobody looked is deleted here too. Replies of our own
writes are laid over it at once, and nothing older than such a reply is ever shown again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from trainmaster_operator.cluster.port import BOOKMARK, DELETED, ApiError, Cluster, Gone, Labels, Object

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_S = (0.05, 5.0)  # first and longest wait before another attempt


class JobKey(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Entry(NamedTuple, Generic[T]):
    version: int
    uid: str
    owner: JobKey | None
    value: T


class Informer(Generic[T]):
    """`slim(object, known)` turns an object into what is kept of it; `known`: what was kept of it so far, or None.
    `owner` names the job that it belongs to.

    `changed(key)` is called after each change of an object, with its owner: synchronous, cheap, any number of times.
    Where `minor(value)` is true of what the object has become, `changed_little(key)` is called instead.

    `relist_s`: don't watch, since `feed` is told what changes; list at the start, and again so often.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: str,
        *,
        slim: Callable[[Object, T | None], T],
        owner: Callable[[Object], JobKey | None],
        changed: Callable[[JobKey], None],
        chance: random.Random,
        labels: Labels | None = None,
        namespace: str | None = None,
        relist_s: float | None = None,
        minor: Callable[[T], bool] | None = None,
        changed_little: Callable[[JobKey], None] | None = None,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        self._cluster = cluster
        self._slim = slim
        self._owner = owner
        self._changed = changed
        self._minor = minor
        self._changed_little = changed_little or changed
        self._random = chance
        self._labels = labels
        self._namespace = namespace
        self._relist_s = relist_s
        self._entries: dict[JobKey, Entry[T]] = {}
        self._by_owner: dict[JobKey, dict[JobKey, Entry[T]]] = {}
        # Uids that may not come back: deleted by us, with DELETED still to come, or fed as DELETED since the last list.
        self._deleted: set[str] = set()
        self._seen = 0  # all that the server knew at this resourceVersion is known here
        self._heard_at: float | None = None
        self._tried_at: float | None = None
        self.failures = 0  # in a row; a stream that ended counts, until the next one tells something
        self.relists = 0

    # -- reading

    def get(self, key: JobKey) -> T | None:
        entry = self._entries.get(key)
        return entry.value if entry else None

    def owned(self, owner: JobKey) -> list[T]:
        """What belongs to a job, in the order of names."""
        return [entry.value for _, entry in sorted(self._by_owner.get(owner, {}).items())]

    def count(self, owner: JobKey) -> int:
        """How much belongs to a job."""
        return len(self._by_owner.get(owner, ()))

    def names(self) -> Iterator[JobKey]:
        return iter(sorted(self._entries))

    def values(self) -> Iterator[T]:
        return (entry.value for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def age_s(self) -> float:
        """Since the server last told anything: an event, a bookmark, a list. Infinity: never."""
        return float("inf") if self._heard_at is None else asyncio.get_running_loop().time() - self._heard_at

    @property
    def stuck_s(self) -> float:
        """Since anything happened here, failures included: a stream that is dead without an error shows as this."""
        moments = [at for at in (self._heard_at, self._tried_at) if at is not None]
        return asyncio.get_running_loop().time() - max(moments) if moments else 0.0

    # -- replies of our own writes

    def wrote(self, obj: Object) -> T | None:
        """Lays the reply of a write over the cache. Returns what the cache now holds of this object: the reply,
        something newer, or None when it is known to be gone."""
        key = _key(obj)
        version = _version(obj)
        if version > self._seen:  # else the watch has told us this or what came after it
            old = self._entries.get(key)
            if (old is None or old.version < version) and obj["metadata"]["uid"] not in self._deleted:
                self._put(key, obj)
        return self.get(key)

    def removed(self, key: JobKey, uid: str) -> None:
        """We have deleted this object, and it is gone."""
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:
            self._deleted.add(uid)
            self._drop(key)

    def amended(self, key: JobKey, uid: str, change: Callable[[T], T]) -> None:
        """Our own write changed this object without telling its new form: assume `change` until the watch tells."""
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:
            self._set(key, entry._replace(value=change(entry.value)))

    # -- following the server

    async def run(self) -> None:
        """Lists and watches until it is cancelled. Any failure is retried: the API server will come back."""
        version = ""
        while True:
            asked_s = 0.0  # to wait, by the server
            try:
                if not version:
                    version = await self._relist()
                    self.failures = 0
                if self._relist_s is not None:
                    version = ""  # in any case: list again
                    await asyncio.sleep(self._relist_s * (1 + 0.2 * self._random.random()))
                    continue
                async for event in self._cluster.watch(self.kind, version, self._namespace, self._labels):
                    version = event.object["metadata"]["resourceVersion"]
                    self.failures = 0
                    self._hear()
                    self._seen = max(self._seen, int(version))
                    if event.type != BOOKMARK:
                        self._apply(event.type == DELETED, event.object)
                self.failures += 1  # the stream ended: watch again, but never in a tight loop
            except Gone as error:
                log.info("%s: history is gone (%s): listing again", self.kind, error)
                version = ""
            except ApiError as error:
                self.failures += 1
                asked_s = error.wait_s
                log.warning("%s: %s: attempt %d", self.kind, error, self.failures)
            self._tried_at = asyncio.get_running_loop().time()
            if self.failures:
                first, longest = BACKOFF_S
                delay = min(longest, first * 2.0 ** min(self.failures - 1, 16))
                await asyncio.sleep(max(asked_s, delay * (1 - 0.5 * self._random.random())))

    def feed(self, deleted: bool, obj: Object) -> None:
        """A change that somebody else's watch has told: of one object in their order, of several in any order."""
        self._hear()
        if _version(obj) <= self._seen:
            return  # the list was newer; what it didn't hold is gone
        self._apply(deleted, obj)
        if deleted:
            self._deleted.add(obj["metadata"]["uid"])  # a reply of ours that comes later was older

    def _hear(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    async def _relist(self) -> str:
        listing = await self._cluster.list(self.kind, self._namespace, self._labels)
        self.relists += 1
        self._hear()
        at = int(listing.resource_version)
        present = set()
        for obj in listing.items:
            key = _key(obj)
            present.add(key)
            self._apply(False, obj)
        for key in [k for k, entry in sorted(self._entries.items()) if k not in present and entry.version <= at]:
            self._tell(self._drop(key))
        self._deleted.clear()
        self._seen = max(self._seen, at)
        self.synced.set()
        return listing.resource_version

    def _apply(self, deleted: bool, obj: Object) -> None:
        key = _key(obj)
        old = self._entries.get(key)
        version = _version(obj)
        uid = obj["metadata"]["uid"]
        if deleted:
            self._deleted.discard(uid)
            if old is not None and old.version < version:
                self._tell(self._drop(key))
        elif uid not in self._deleted and (old is None or old.version < version):
            self._put(key, obj)
            if old is not None and old.owner != self._entries[key].owner:
                self._tell(old)
            self._tell(self._entries[key], self._minor)

    def _put(self, key: JobKey, obj: Object) -> None:
        uid = obj["metadata"]["uid"]
        old = self._entries.get(key)
        known = old.value if old is not None and old.uid == uid else None
        self._set(key, Entry(_version(obj), uid, self._owner(obj), self._slim(obj, known)))

    def _set(self, key: JobKey, entry: Entry[T]) -> None:
        self._drop(key)
        self._entries[key] = entry
        if entry.owner is not None:
            self._by_owner.setdefault(entry.owner, {})[key] = entry

    def _drop(self, key: JobKey) -> Entry[T] | None:
        entry = self._entries.pop(key, None)
        if entry is not None and entry.owner is not None:
            owned = self._by_owner[entry.owner]
            del owned[key]
            if not owned:
                del self._by_owner[entry.owner]
        return entry

    def _tell(self, entry: Entry[T] | None, minor: Callable[[T], bool] | None = None) -> None:
        if entry is not None and entry.owner is not None:
            tell = self._changed_little if minor and minor(entry.value) else self._changed
            tell(entry.owner)


def _key(obj: Object) -> JobKey:
    return JobKey(obj["metadata"]["namespace"], obj["metadata"]["name"])


def _version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])
