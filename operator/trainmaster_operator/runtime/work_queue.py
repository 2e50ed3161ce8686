"""A keyed work queue with the contract of client-go.

A key that is added while it waits stays one key; a key that is added while it is processed is processed once more
afterwards; a key is never processed twice at the same time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue has been shut down and is empty."""


class WorkQueue(Generic[K]):
    """A queue that belongs to one event loop and uses its time. `base_s`, `limit_s`: the first and the longest
    back-off of a key, in seconds, which doubles with each failure. `jitter`: a back-off is between 1 - jitter and 1 of
    its value."""

    def __init__(self, chance: random.Random, base_s: float, limit_s: float, jitter: float = 0.5):
        self._random = chance
        self._base_s = base_s
        self._limit_s = limit_s
        self._jitter = jitter
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._failures: dict[K, int] = {}
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._added_at: dict[K, float] = {}
        # Called with the seconds that a key has waited when it is taken.
        self.on_wait: Callable[[float], None] | None = None

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def processing(self) -> int:
        """Number of keys that are being processed."""
        return len(self._processing)

    @property
    def oldest_s(self) -> float:
        """Seconds for which the next key has waited for its turn. It grows if keys are no longer taken."""
        return asyncio.get_running_loop().time() - self._added_at[self._ready[0]] if self._ready else 0.0

    def add(self, key: K) -> None:
        """Add a key, unless it waits already."""
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        self._added_at[key] = asyncio.get_running_loop().time()
        if key not in self._processing:
            self._push(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add the key after a delay in seconds. Of two delays for one key the earlier time counts."""
        if self._closed:
            return
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        waiting = self._delayed.get(key)
        if waiting is not None:
            if waiting.when() <= at:
                return
            waiting.cancel()
        self._delayed[key] = loop.call_at(at, self._due, key)

    def add_rate_limited(self, key: K, limit_s: float | None = None) -> float:
        """Add the key after its back-off, which doubles with each call until `forget`. Return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        limit = self._limit_s if limit_s is None else limit_s
        delay = min(limit, self._base_s * 2.0 ** min(failures, 60))
        delay *= 1 - self._jitter * self._random.random()
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Return how often the key was added with a back-off since the last `forget`."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the back-off of a key that was processed successfully."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key and return it. It counts as being processed until `done`. Raise ShutDown."""
        while not self._ready:
            if self._closed:
                raise ShutDown
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # It was our turn, so it is passed on.
                elif waiter in self._getters:
                    self._getters.remove(waiter)
                raise
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        waited = asyncio.get_running_loop().time() - self._added_at.pop(key)
        if self.on_wait:
            self.on_wait(waited)
        return key

    def looked_at(self, key: K) -> None:
        """Record that the processing of this key reads everything from the start. That serves all additions of the
        key up to now, also those that are delayed."""
        if key not in self._processing:
            return
        if key in self._dirty:
            self._dirty.discard(key)
            del self._added_at[key]
        waiting = self._delayed.pop(key, None)
        if waiting is not None:
            waiting.cancel()

    def done(self, key: K) -> None:
        """Record that the processing of a key has ended."""
        self._processing.discard(key)
        if key in self._dirty:
            self._push(key)

    def shutdown(self, *, drop: bool = False) -> None:
        """Accept no more keys. Waiting keys are still handed out, or dropped; after that `get` raises ShutDown."""
        self._closed = True
        if drop:
            self._ready.clear()
            self._dirty.clear()
            self._added_at.clear()
        for handle in self._delayed.values():
            handle.cancel()
        self._delayed.clear()
        while self._getters:
            self._wake()

    def _due(self, key: K) -> None:
        del self._delayed[key]
        self.add(key)

    def _push(self, key: K) -> None:
        self._ready.append(key)
        self._wake()

    def _wake(self) -> None:
        while self._getters:
            waiter = self._getters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
