"""Virtual time, for the simulation and for tests: a clock that stands still, and an event loop that moves it to its
next timer."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualClock:
    """A clock that stands still until `advance` is called; `VirtualLoop` moves it to its next timer."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._start = now
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def now(self) -> float:
        return self._start + self.elapsed

    def advance(self, seconds: float) -> None:
        """Move the clock forward by a number of seconds."""
        self.elapsed += max(0.0, seconds)


class Deadlock(RuntimeError):
    """Every task waits, and no timer is left that could wake one."""


class _Soon(asyncio.Handle):
    """A callback without the data that a loop in debug mode keeps, because a simulated second creates thousands of
    them."""

    __slots__ = ()
    _repr = None  # Class attributes in place of the fields that asyncio sets in each handle for its debug mode.
    _source_traceback = None

    def __init__(
        self, callback: Callable[..., object], args: Sequence[Any], context: contextvars.Context | None = None
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _Later(_Soon, asyncio.TimerHandle):
    __slots__ = ()
    _scheduled = False  # The heap drops a cancelled timer when its time comes.

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        context: contextvars.Context | None = None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._when = when


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time: it has no file descriptors, never blocks, and runs its steps in the same order in
    each run.

    If nothing is ready, it moves to its next timer. Timers of the same moment run in the order in which they were set.
    The calls that asyncio makes most often are answered without a Python frame, because a simulated second makes
    thousands of them.
    """

    get_debug = bool

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__()
        self.clock = clock or VirtualClock()
        self._timers: list[tuple[float, int, _Later]] = []
        self._timers_set = 0
        self.create_future = functools.partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self._ready: deque[_Soon]

    def time(self) -> float:
        return self.clock.elapsed

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when = self.clock.elapsed + delay
        timer = _Later(when, callback, args, context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Later(when, callback, args, context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _run_once(self) -> None:
        """Run all turns until the loop is to stop. Raise Deadlock if all tasks wait and no timer is set."""
        ready, timers, clock = self._ready, self._timers, self.clock
        while True:
            while timers and timers[0][2]._cancelled:
                heappop(timers)
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                if not timers:
                    raise Deadlock("all tasks wait and no timer is set")
                clock.elapsed = max(clock.elapsed, timers[0][0])
            while timers and timers[0][0] <= clock.elapsed:
                ready.append(heappop(timers)[2])
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 - any callback's, as asyncio does
                        words = f"Exception in callback {handle._callback}"
                        self.call_exception_handler({"message": words, "exception": error, "handle": handle})
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _write_to_self(self) -> None:
        """Do nothing: call_soon_threadsafe calls this to wake the loop, which never blocks."""


def run_virtual(main: Coroutine[Any, Any, T], clock: VirtualClock | None = None) -> T:
    """Run a coroutine like `asyncio.run`, in virtual time. Raise Deadlock if nothing can happen any more."""
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
