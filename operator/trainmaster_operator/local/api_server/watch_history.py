"""The watch history of one kind: a window over an append-only log, and cursors that read it."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from trainmaster_operator.cluster.objects import bookmark, matches
from trainmaster_operator.cluster.port import (
    ADDED,
    BOOKMARK,
    DELETED,
    MODIFIED,
    EventType,
    Gone,
    Labels,
    Object,
    WatchEvent,
)

# Number of events that a selector hid: a bookmark then saves the watcher a relist after a reconnect.
BOOKMARK_AFTER = 100

WINDOW = 4096
"""Number of changes of a kind that a watch can go back, unless a store asks for another number."""


class Entry(NamedTuple):
    """One change. `before`: the object before the change, or None."""

    version: int
    type: EventType
    object: Object
    before: Object | None


class History:
    """At least the last `window` changes of a kind. Appending is O(1) amortised and copies nothing."""

    def __init__(self, kind: str, window: int, latest: Callable[[], int]) -> None:
        self.kind = kind
        self.window = window
        self.latest = latest  # Returns the store's resourceVersion.
        self.horizon = latest()  # Changes up to this version may be forgotten.
        self.entries: list[Entry] = []
        self.first = 0  # The number of entries[0], counted from the start of the store.
        self.bookmarks = 0
        self.cursors: dict[Cursor, None] = {}

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) > 2 * self.window:
            self.forget(len(self.entries) - self.window)
        self.wake()

    def forget(self, count: int) -> None:
        """Forget the oldest `count` changes."""
        if count:
            self.horizon = self.entries[count - 1].version
            del self.entries[:count]
            self.first += count

    def compact(self) -> None:
        """Forget everything: a watch from an earlier version raises Gone, and so does a cursor that is late."""
        self.forget(len(self.entries))
        self.horizon = self.latest()
        self.wake()

    def undone(self, changes: int) -> tuple[int, list[Entry]]:
        """Return the version before the last `changes` changes, as far as they are known, and these changes, newest
        first."""
        last = self.entries[-changes:] if changes > 0 else []
        return (last[0].version - 1 if last else self.latest()), last[::-1]

    def bookmark(self) -> None:
        """Let every cursor return a bookmark after what it has not read yet."""
        self.bookmarks += 1
        self.wake()

    def wake(self) -> None:
        """Wake every cursor."""
        for cursor in self.cursors:
            cursor.ready.set()


class Cursor:
    """One watcher's place in a history. Close it when it is no longer needed."""

    def __init__(
        self, history: History, version: int, namespace: str | None, labels: Labels | None, initial: list[Object]
    ) -> None:
        """`initial` objects are returned first, as ADDED. Raise Gone."""
        if not history.horizon <= version <= history.latest():
            raise Gone(f"too old resource version: {version} ({history.horizon})")
        self.history = history
        self.namespace = namespace
        self.labels = dict(labels) if labels else None
        self.ready = asyncio.Event()
        self._initial = initial
        self._next = history.first + bisect_right(history.entries, version, key=lambda entry: entry.version)
        self._bookmarks = history.bookmarks
        self._hidden = 0
        history.cursors[self] = None
        self.ready.set()

    def close(self) -> None:
        self.history.cursors.pop(self, None)

    def take(self) -> list[WatchEvent]:
        """Return everything that is new. Raise Gone if the history has forgotten changes that this cursor has not
        read."""
        self.ready.clear()
        history = self.history
        if self._next < history.first:
            raise Gone("too old resource version: the watcher lags behind the history")
        events = [WatchEvent(ADDED, obj) for obj in self._initial]
        self._initial = []
        for entry in history.entries[self._next - history.first :]:
            event = self._seen(entry)
            if event is None:
                self._hidden += 1
            else:
                events.append(event)
        self._next = history.first + len(history.entries)
        if self._bookmarks < history.bookmarks or self._hidden >= BOOKMARK_AFTER:
            events.append(WatchEvent(BOOKMARK, bookmark(history.kind, str(history.latest()))))
            self._bookmarks, self._hidden = history.bookmarks, 0
        return events

    def _seen(self, entry: Entry) -> WatchEvent | None:
        if self.namespace is not None and entry.object["metadata"]["namespace"] != self.namespace:
            return None
        if not self.labels:
            return WatchEvent(entry.type, entry.object)
        before = entry.before is not None and matches(entry.before, self.labels)
        after = entry.type != DELETED and matches(entry.object, self.labels)
        if before and after:
            return WatchEvent(MODIFIED, entry.object)
        if after:
            return WatchEvent(ADDED, entry.object)
        if before:
            # As on an API server: the last state that matched, with the version of the change.
            assert entry.before is not None
            last = entry.before
            metadata = {**last["metadata"], "resourceVersion": str(entry.version)}
            return WatchEvent(DELETED, {**last, "metadata": metadata})
        return None
