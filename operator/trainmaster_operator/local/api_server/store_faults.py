"""Injected faults between the store and one of its clients: the store refuses calls for a while, or a given write is
the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from trainmaster_operator.cluster.port import EVENT, LEASE, POD

WRITES = ("create", "update", "update_status", "patch", "apply", "delete", "resize", "evict")


class Trouble:
    """The injected faults of one store."""

    def __init__(self) -> None:
        self.begins: list[Callable[[], None]] = []  # Called when an outage begins, to end open watches.
        self._refuses_until = 0.0
        self._writes = 0
        self._then: list[tuple[int, Callable[[], Awaitable[None]]]] = []  # After which write, and what.
        self._under_way: asyncio.Future[list[None]] | None = None

    @property
    def refuses(self) -> bool:
        """True while calls are refused."""
        return self.refuses_s > 0

    @property
    def refuses_s(self) -> float:
        """For how many more seconds calls are refused."""
        return max(0.0, self._refuses_until - asyncio.get_running_loop().time())

    def refuse_for(self, seconds: float) -> None:
        """Refuse all calls for a number of seconds from now, and end open watches."""
        self._refuses_until = asyncio.get_running_loop().time() + seconds
        for break_off in self.begins:
            break_off()

    def after_writes(self, count: int, then: Callable[[], Awaitable[None]]) -> None:
        """Call `then` when `count` more writes have taken effect, before the last one is answered."""
        self._then.append((self._writes + count, then))

    async def done(self, verb: str, arguments: dict[str, Any]) -> None:
        """Record that a call took effect. Leases and events are not counted, because they depend on the time and not
        on what happens to the job."""
        if verb not in WRITES or arguments.get("kind", POD) in (LEASE, EVENT):
            return
        self._writes += 1
        due = [then for number, then in self._then if number <= self._writes]
        if due:
            self._then = [(number, then) for number, then in self._then if number > self._writes]
            # If the client ends, the handler that serves it is cancelled; `then` must run to its end in spite of that.
            self._under_way = under_way = asyncio.gather(*(then() for then in due))
            await asyncio.shield(under_way)
