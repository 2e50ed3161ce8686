"""Time and chance are injected. This is the only module of the runtime that may touch the real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Sleeping is `asyncio.sleep`: the event loop runs on the same time as its clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never jumps."""
        ...

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        ...


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> float:
        return time.time()


class VirtualClock:
    """Stands still until somebody advances it; `VirtualLoop` jumps to its next timer."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._start = now
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def now(self) -> float:
        return self._start + self.elapsed

    def advance(self, seconds: float) -> None:
        self.elapsed += max(0.0, seconds)


class Deadlock(RuntimeError):
    """Every task waits, and no timer is left that could wake one."""


class _Jump:
    """A selector without files: instead of blocking it advances the clock to the next timer."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("all tasks wait and no timer is set")
        self.clock.advance(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time: no file descriptors, no blocking, the same order of steps in each run."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__()
        self.clock = clock or VirtualClock()
        self._selector = _Jump(self.clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.clock.monotonic()

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Called by call_soon_threadsafe: nothing to wake, the loop never blocks."""


def run_virtual(main: Coroutine[Any, Any, T], clock: VirtualClock | None = None) -> T:
    """`asyncio.run` in virtual time. Raises Deadlock when nothing can happen any more."""
    loop = VirtualLoop(clock)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_all(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_all(loop: VirtualLoop) -> None:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
