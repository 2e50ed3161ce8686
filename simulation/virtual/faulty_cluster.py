"""A wrapper around any `Cluster` that does what real API servers and networks do at the worst moment.

Faults come from a seeded generator (Rates), from a script (the n-th write, list or event), or both. A CrashPoint ends
the client at its n-th write: from then on each of its calls raises OperatorCrash, as a dead process makes no calls.
One FaultyCluster is one client process: make a new one, over the same inner cluster, for the restarted process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from simulation.virtual.cluster_faults import CrashPoint, Fault, OperatorCrash, Rates, Scripted, Stream
from trainmaster_operator.cluster.port import (
    BOOKMARK,
    LEASE,
    ApiError,
    Cluster,
    Conflict,
    Gone,
    Labels,
    Listing,
    Object,
    TokenReview,
    TooManyRequests,
    Unavailable,
    WatchEvent,
)

T = TypeVar("T")


HELD_S = 1.0
"""How long an event that is to arrive after the next one waits for that."""


@runtime_checkable
class Lagging(Protocol):
    async def list_before(
        self, kind: str, changes: int, namespace: str | None = None, labels: Labels | None = None
    ) -> Listing: ...


def all_but_leases(verb: str, kind: str) -> bool:
    return kind != LEASE


class FaultyCluster:
    """`counts(verb, kind)` says which writes are counted and can meet a scripted fault or a crash: by default all but
    those of leases, which come by the clock. Where `uncounted` draws, the others meet faults by their rates too; by
    default they meet none. `latency_s`: bounds of the time before and again after a call takes effect.
    `late_s`: bounds of a late write's or event's delay. `lag`: how many changes a stale list misses; it needs an inner
    cluster with `list_before`, over others no list is stale.
    """

    def __init__(
        self,
        inner: Cluster,
        chance: random.Random,
        *,
        rates: Rates | None = None,
        script: Iterable[Scripted] = (),
        crash: CrashPoint | None = None,
        counts: Callable[[str, str], bool] = all_but_leases,
        uncounted: random.Random | None = None,
        latency_s: tuple[float, float] = (0.0, 0.0),
        lag: int = 3,
        late_s: tuple[float, float] = (0.01, 5.0),
    ) -> None:
        self.inner = inner
        self.chance = chance
        self.rates = rates or Rates()
        self.crash = crash
        self.crashed = False
        self.lands_late = False  # a write takes effect right now that was held back under way
        self.latency_s = latency_s
        self.lag = lag
        self.late_s = late_s
        self.written: list[str] = []  # "verb kind namespace/name" of each counted write
        self._counts = counts
        self._uncounted = uncounted
        self._script = {(s.stream, s.number): s.fault for s in script}
        self._lists = 0
        self._events = 0
        self._outages = 0
        self._frozen_until = float("-inf")
        self._cut = asyncio.Event()  # replaced when it is set
        self._late: set[asyncio.Task[None]] = set()
        self._lossy: set[str] = set()  # kinds of which an event was dropped since their last list

    @property
    def writes(self) -> int:
        """How many writes this client has made or tried, of those that count."""
        return len(self.written)

    def disconnect(self) -> None:
        """Breaks all watches that are open now."""
        self._cut.set()
        self._cut = asyncio.Event()

    def die(self) -> None:
        """As a crash between two calls: no call of this client has any effect from now on."""
        self.crashed = True
        self.disconnect()

    async def outage(self, duration_s: float) -> None:
        """Until then no call gets through, and no watch is open. May overlap with others."""
        self._outages += 1
        self.disconnect()
        try:
            await asyncio.sleep(duration_s)
        finally:
            self._outages -= 1

    def freeze(self, duration_s: float) -> None:
        """What is under way between client and server stays there so long, and is not lost: as if the client got no
        CPU, or its network held everything back."""
        self._frozen_until = asyncio.get_running_loop().time() + duration_s

    @property
    def frozen_s(self) -> float:
        """How long from now."""
        return max(0.0, self._frozen_until - asyncio.get_running_loop().time())

    async def _thawed(self) -> None:
        while (left_s := self.frozen_s) > 0:
            await asyncio.sleep(left_s)

    async def list(self, kind: str, namespace: str | None = None, labels: Labels | None = None) -> Listing:
        self._lists += 1
        fault = self._draw("list", self._lists, self.rates.of_lists)
        await self._travel()
        if fault is Fault.FAIL:
            raise Unavailable("injected: the list failed")
        if fault is Fault.THROTTLE:
            raise TooManyRequests("injected: too many lists")
        if fault is Fault.STALE and isinstance(self.inner, Lagging):
            listing = await self.inner.list_before(kind, self.lag, namespace, labels)
        else:
            listing = await self.inner.list(kind, namespace, labels)
        await self._travel()
        return listing

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        await self._travel()
        obj = await self.inner.get(kind, namespace, name)
        await self._travel()
        return obj

    async def watch(
        self, kind: str, resource_version: str, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[WatchEvent]:
        await self._travel()
        if kind in self._lossy:
            # A server that has lost events doesn't know what to go on with: else nobody would ever learn of them.
            self._lossy.discard(kind)
            raise Gone("injected: events before this version are lost")
        stream = self.inner.watch(kind, resource_version, namespace, labels)
        cut = asyncio.ensure_future(self._cut.wait())
        step: asyncio.Future[WatchEvent] | None = None
        held: WatchEvent | None = None
        try:
            while True:
                step = step or asyncio.ensure_future(anext(stream))
                either: list[asyncio.Future[Any]] = [step, cut]
                await asyncio.wait(either, timeout=HELD_S if held else None, return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    self._alive()
                    raise Unavailable("injected: the watch was cut")
                if not step.done():
                    assert held is not None
                    yield held
                    held = None
                    continue
                try:
                    event = step.result()
                except StopAsyncIteration:
                    return
                step = None
                fault = self._meets(event)
                if fault is Fault.DELAY:
                    await asyncio.wait([cut], timeout=self.chance.uniform(*self.late_s))
                await self._thawed()
                if cut.done():
                    self._alive()
                    raise Unavailable("injected: the watch was cut")
                if held is not None and not _passes(event, held):
                    yield held
                    held = None
                if fault is Fault.REORDER and held is None:
                    held = event
                    continue
                if fault is Fault.DROP:
                    self._lossy.add(kind)
                for _ in range({Fault.DROP: 0, Fault.DUPLICATE: 2}.get(fault, 1) if fault else 1):
                    yield event
                if held is not None:
                    yield held
                    held = None
        except _OrderlyEnd:
            return
        finally:
            cut.cancel()
            if step is not None and not step.done():
                step.cancel()
                await asyncio.wait([step])
            await stream.aclose()  # type: ignore[attr-defined]

    async def create(self, kind: str, obj: Object) -> Object:
        return await self._write("create", kind, _named(obj), lambda: self.inner.create(kind, obj))

    async def update(self, kind: str, obj: Object) -> Object:
        return await self._write("update", kind, _named(obj), lambda: self.inner.update(kind, obj))

    async def update_status(self, kind: str, obj: Object) -> Object:
        return await self._write("update_status", kind, _named(obj), lambda: self.inner.update_status(kind, obj))

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Object, resource_version: str | None = None
    ) -> Object:
        call = lambda: self.inner.patch(kind, namespace, name, patch, resource_version)  # noqa: E731
        return await self._write("patch", kind, f"{namespace}/{name}", call)

    async def apply(self, kind: str, obj: Object) -> Object:
        return await self._write("apply", kind, _named(obj), lambda: self.inner.apply(kind, obj))

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        call = lambda: self.inner.delete(kind, namespace, name, uid, grace_s)  # noqa: E731
        await self._write("delete", kind, f"{namespace}/{name}", call)

    async def resize(self, namespace: str, name: str, uid: str, resources: Mapping[str, Object]) -> Object:
        call = lambda: self.inner.resize(namespace, name, uid, resources)  # noqa: E731
        return await self._write("resize", "Pod", f"{namespace}/{name}", call)

    async def evict(self, namespace: str, name: str) -> None:
        await self._write("evict", "Pod", f"{namespace}/{name}", lambda: self.inner.evict(namespace, name))

    async def events_about(self, namespace: str, uid: str) -> Sequence[Object]:
        await self._travel()
        events = await self.inner.events_about(namespace, uid)
        await self._travel()
        return events

    async def review_token(self, token: str, audience: str) -> TokenReview | None:
        await self._travel()
        review = await self.inner.review_token(token, audience)
        await self._travel()
        return review

    async def _write(self, verb: str, kind: str, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._alive()
        if self._counts(verb, kind):
            self.written.append(f"{verb} {kind} {name}")
            fault = self._draw("write", self.writes, self.rates.of_writes)
            return await self._send(verb, kind, call, fault, self.writes)
        fault = _chosen(self._uncounted.random(), self.rates.of_writes) if self._uncounted is not None else None
        return await self._send(verb, kind, call, fault)

    async def _send(
        self, verb: str, kind: str, call: Callable[[], Coroutine[Any, Any, T]], fault: Fault | None, number: int = 0
    ) -> T:
        """`number`: of a write that counts."""
        sent_at = asyncio.get_running_loop().time()
        await self._travel()
        held_s = asyncio.get_running_loop().time() - sent_at
        if number:
            self._crash_at(number, "before")
        if fault is Fault.FAIL:
            raise Unavailable(f"injected: {verb} {kind} failed")
        if fault is Fault.THROTTLE:
            raise TooManyRequests(f"injected: {verb} {kind}: too many requests")
        if fault is Fault.CONFLICT:
            raise Conflict(f"injected: {verb} {kind} conflicts")
        if fault is Fault.LATE:
            self._land_later(call)
            raise Unavailable(f"injected: {verb} {kind} is still under way")
        result = await self._land(call, late=held_s > self.latency_s[1])
        if number:
            self._crash_at(number, "after")
        await self._travel()
        if fault is Fault.LOSE:
            raise Unavailable(f"injected: the reply to {verb} {kind} was lost")
        return result

    async def _land(self, call: Callable[[], Coroutine[Any, Any, T]], *, late: bool) -> T:
        self.lands_late = late
        try:
            return await call()
        finally:
            self.lands_late = False

    def _land_later(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        async def land() -> None:
            await asyncio.sleep(delay_s)
            with suppress(ApiError):  # nobody waits for the answer
                await self._land(call, late=True)

        delay_s = self.chance.uniform(*self.late_s)
        task = asyncio.create_task(land())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _meets(self, event: WatchEvent) -> Fault | None:
        """What happens to an event. Raises what breaks the stream instead."""
        if event.type == BOOKMARK:
            return None
        self._events += 1
        fault = self._draw("event", self._events, self.rates.of_events)
        if fault is Fault.DISCONNECT:
            raise Unavailable("injected: the watch broke")
        if fault is Fault.EXPIRE:
            raise Gone("injected: too old resource version")
        if fault is Fault.END:
            raise _OrderlyEnd
        return fault

    def _draw(self, stream: Stream, number: int, rates: Iterable[tuple[Fault, float]]) -> Fault | None:
        drawn = self.chance.random()  # always, so that a script doesn't shift what the seed gives
        if scripted := self._script.get((stream, number)):
            return scripted
        return _chosen(drawn, rates)

    async def _travel(self) -> None:
        """One way between client and server. Raises when the client is dead or the server away."""
        self._alive()
        if self.latency_s[1] > 0:
            await asyncio.sleep(self.chance.uniform(*self.latency_s))
            self._alive()
        if self._frozen_until > float("-inf"):
            await self._thawed()
            self._alive()
        if self._outages:
            raise Unavailable("injected: the API server is away")

    def _alive(self) -> None:
        if self.crashed:
            raise OperatorCrash("this process is dead")

    def dies_at(self, number: int, when: Literal["before", "after"]) -> bool:
        return self.crash is not None and (self.crash.number, self.crash.when) == (number, when)

    def _crash_at(self, number: int, when: Literal["before", "after"]) -> None:
        if self.dies_at(number, when):
            self.die()
            raise OperatorCrash(f"{when} write {number}: {self.written[-1]}")


class _OrderlyEnd(Exception):
    """The server ends a stream."""


def _chosen(drawn: float, rates: Iterable[tuple[Fault, float]]) -> Fault | None:
    for fault, rate in rates:
        if drawn < rate:
            return fault
        drawn -= rate
    return None


def _passes(event: WatchEvent, held: WatchEvent) -> bool:
    """One object's events stay in their order, and a bookmark speaks of all that came before."""
    return event.type != BOOKMARK and event.object["metadata"]["uid"] != held.object["metadata"]["uid"]


def _named(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata'].get('name', '')}"
