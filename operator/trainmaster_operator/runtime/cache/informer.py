"""A cache of one kind of object, kept up to date by list and watch, or by lists and a watch of somebody else that feeds
it.

A relist replaces the cache, so objects that vanished while the watch was interrupted are removed. Replies to this
operator's own writes are put into the cache at once, and nothing older than such a reply is ever shown again.
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

BACKOFF_S = (0.05, 5.0)  # The first and the longest wait before another attempt.
REMEMBERED_DELETIONS = 4096
"""Number of objects reported as deleted by the watch, whose late replies to writes are ignored."""


class JobKey(NamedTuple):
    """The namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Entry(NamedTuple, Generic[T]):
    """A cached object: its version, uid, owning job and the value that is kept of it."""

    version: int
    uid: str
    owner: JobKey | None
    value: T


class Informer(Generic[T]):
    """A cache of one kind. `slim(object, known)` returns what is kept of an object; `known`: what was kept of it so
    far, or None. `owner` returns the job to which it belongs.

    `changed(key)` is called with the owner after each change of an object; it must be synchronous and cheap, and it may
    be called any number of times. If `minor(value)` is true for the new state of the object, `changed_little(key)` is
    called instead. `relist_s`: do not watch, because `feed` reports changes; list at the start and then every
    `relist_s` seconds.
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
        # Uids that may not come back: objects that this operator deleted and whose DELETED event has not arrived, or
        # that were fed as DELETED since the last list.
        self._deleted: set[str] = set()
        # Uids of the last objects that the watch reported as deleted, oldest first.
        self._gone: dict[str, None] = {}
        self._listed = 0  # Everything that the server knew at this resourceVersion is known here.
        self._heard_at: float | None = None
        self._tried_at: float | None = None
        # Number of failures in succession. A stream that ended counts until the next one delivers something.
        self.failures = 0
        self.relists = 0

    # -- reading

    def get(self, key: JobKey) -> T | None:
        """Return what is kept of an object, or None."""
        entry = self._entries.get(key)
        return entry.value if entry else None

    def owned(self, owner: JobKey) -> list[T]:
        """Return the objects that belong to a job, ordered by name."""
        return [entry.value for _, entry in sorted(self._by_owner.get(owner, {}).items())]

    def count(self, owner: JobKey) -> int:
        """Return the number of objects that belong to a job."""
        return len(self._by_owner.get(owner, ()))

    def names(self) -> Iterator[JobKey]:
        """Return the keys of all cached objects in their order."""
        return iter(sorted(self._entries))

    def values(self) -> Iterator[T]:
        return (entry.value for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def age_s(self) -> float:
        """Seconds since the server last sent an event, a bookmark or a list. Infinity if it never did."""
        return float("inf") if self._heard_at is None else asyncio.get_running_loop().time() - self._heard_at

    @property
    def stuck_s(self) -> float:
        """Seconds since the last activity, failures included. A stream that is dead without an error shows in this
        number."""
        moments = [at for at in (self._heard_at, self._tried_at) if at is not None]
        return asyncio.get_running_loop().time() - max(moments) if moments else 0.0

    # -- replies of our own writes

    def wrote(self, obj: Object) -> T | None:
        """Put the reply to a write into the cache. Return what the cache now holds of this object: the reply,
        something newer, or None if the object is known to be gone.

        That the watch has delivered a later version of another object does not show that it has delivered this one:
        an event may be lost. So a reply is ignored only if the list was newer, or if the object is known to be deleted.
        """
        key, version, uid = _key(obj), _version(obj), obj["metadata"]["uid"]
        if version > self._listed and uid not in self._deleted and uid not in self._gone:
            old = self._entries.get(key)
            if old is None or old.version < version:
                self._put(key, obj)
        return self.get(key)

    def removed(self, key: JobKey, uid: str) -> None:
        """Remove an object from the cache that this operator has deleted and that is gone."""
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:
            self._deleted.add(uid)
            self._drop(key)

    def amended(self, key: JobKey, uid: str, change: Callable[[T], T]) -> None:
        """Change an object in the cache after a write whose reply does not contain its new form: assume `change`
        until the watch delivers it."""
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:
            self._set(key, entry._replace(value=change(entry.value)))

    # -- following the server

    async def run(self) -> None:
        """List and watch until cancelled. Any failure is retried, because the API server will come back."""
        version = ""
        while True:
            asked_s = 0.0  # Seconds for which the server asks to wait.
            try:
                if not version:
                    version = await self._relist()
                    self.failures = 0
                if self._relist_s is not None:
                    version = ""  # In any case the next turn lists again.
                    await asyncio.sleep(self._relist_s * (1 + 0.2 * self._random.random()))
                    continue
                async for event in self._cluster.watch(self.kind, version, self._namespace, self._labels):
                    version = event.object["metadata"]["resourceVersion"]
                    self.failures = 0
                    self._hear()
                    if event.type != BOOKMARK:
                        self._apply(event.type == DELETED, event.object)
                self.failures += 1  # The stream ended. Watch again, but not without a pause.
            except Gone as error:
                log.info("%s: history is gone (%s): listing again", self.kind, error)
                version = ""
            except ApiError as error:
                self.failures += 1
                asked_s = error.retry_after_s
                log.warning("%s: %s: attempt %d", self.kind, error, self.failures)
            self._tried_at = asyncio.get_running_loop().time()
            if self.failures:
                first, longest = BACKOFF_S
                delay = min(longest, first * 2.0 ** min(self.failures - 1, 16))
                await asyncio.sleep(max(asked_s, delay * (1 - 0.5 * self._random.random())))

    def feed(self, deleted: bool, obj: Object) -> None:
        """Take a change that somebody else's watch delivers. Changes of one object come in their order; changes of
        several objects may come in any order."""
        self._hear()
        if _version(obj) <= self._listed:
            return  # The list was newer; an object that is not in it is gone.
        self._apply(deleted, obj)
        if deleted:
            self._deleted.add(obj["metadata"]["uid"])  # A reply to a write of this operator that comes later is older.

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
        self._gone.clear()
        self._listed = max(self._listed, at)
        self.synced.set()
        return listing.resource_version

    def _apply(self, deleted: bool, obj: Object) -> None:
        key = _key(obj)
        old = self._entries.get(key)
        version = _version(obj)
        uid = obj["metadata"]["uid"]
        if deleted:
            self._deleted.discard(uid)
            self._remember_as_gone(uid)
            if old is not None and old.version < version:
                self._tell(self._drop(key))
        elif uid not in self._deleted and (old is None or old.version < version):
            self._gone.pop(uid, None)
            self._put(key, obj)
            if old is not None and old.owner != self._entries[key].owner:
                self._tell(old)
            self._tell(self._entries[key], self._minor)

    def _remember_as_gone(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > REMEMBERED_DELETIONS:
            del self._gone[next(iter(self._gone))]

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
