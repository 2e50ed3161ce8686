"""A keyed work queue with client-go's contract.

A key that is added while it waits is one key; a key that is added while it is processed runs once more afterwards;
a key is never processed twice at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

BASE_S = 0.005
LIMIT_S = 1000.0


class ShutDown(Exception):
    """The queue has been shut down and is empty."""


class WorkQueue(Generic[K]):
    """Belongs to one event loop, whose time it uses. `jitter`: a back-off is 1 - jitter to 1 of its value."""

    def __init__(self, chance: random.Random, base_s: float = BASE_S, limit_s: float = LIMIT_S, jitter: float = 0.5):
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
        self.on_wait: Callable[[float], None] | None = None  # told how long a key has waited when it is taken

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def processing(self) -> int:
        """Keys that are being processed."""
        return len(self._processing)

    @property
    def oldest_s(self) -> float:
        """How long the key that is next has waited for its turn: when nobody takes keys any more, this grows."""
        return asyncio.get_running_loop().time() - self._added_at[self._ready[0]] if self._ready else 0.0

    def add(self, key: K) -> None:
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        self._added_at[key] = asyncio.get_running_loop().time()
        if key not in self._processing:
            self._push(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Adds the key later. Of two such wishes for one key the earlier wins."""
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
        """Adds the key after its back-off, which doubles with each call until `forget`. Returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        limit = self._limit_s if limit_s is None else limit_s
        delay = min(limit, self._base_s * 2.0 ** min(failures, 60))
        delay *= 1 - self._jitter * self._random.random()
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """The key did well: its next back-off starts from the bottom."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; it counts as being processed until `done`. Raises ShutDown."""
        while not self._ready:
            if self._closed:
                raise ShutDown
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # it was our turn: pass it on
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
        """Whoever processes this key looks at all that it stands for: that is what it was added for up to now, and what
        it is to be added for later."""
        if key not in self._processing:
            return
        if key in self._dirty:
            self._dirty.discard(key)
            del self._added_at[key]
        waiting = self._delayed.pop(key, None)
        if waiting is not None:
            waiting.cancel()

    def done(self, key: K) -> None:
        self._processing.discard(key)
        if key in self._dirty:
            self._push(key)

    def shutdown(self, *, drop: bool = False) -> None:
        """Takes nothing more; what waits is still handed out, or dropped, then `get` raises ShutDown."""
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
