"""Leader election in its own thread and event loop, so that a busy main loop cannot lose the lease.

The main loop reads `leading`, `epoch` and `check` directly, and awaits what runs in the other loop. When the lease is
lost, `hold` raises in the main loop, which ends the process; if that loop is stuck, this thread ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from trainmaster_operator.cluster.port import Cluster
from trainmaster_operator.planning.facts.observation import OperatorAbsence, StandbyAnswers
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.leader.lease import Elector, LeaseSettings, NotLeading

log = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_WITHIN_S = 3.0  # Between our deadline and the moment at which another replica may lead there are 5 s.
JOIN_S = 1.0


class Connection(Cluster, Protocol):
    """A Cluster that belongs to the event loop in which it was created."""

    async def close(self) -> None: ...


class Election:
    """Use it like an Elector, from one event loop: call `start` first, and `close` after `release`. `exit`: ends the
    process."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        clock: Clock,
        chance: random.Random,
        identity: str,
        settings: LeaseSettings,
        exit: Callable[[int], Any] = os._exit,
    ) -> None:
        self._connect = connect
        self._arguments = (clock, chance, identity, settings)
        self._exit = exit
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)
        self._cluster: Connection | None = None
        self._elector: Elector | None = None

    async def start(self) -> None:
        """Start the thread and connect. Raise what connecting raises."""
        self._thread.start()
        await self._over_there(self._open())

    async def close(self) -> None:
        """Close the connection and end the thread."""
        if self._cluster is not None:
            await self._over_there(self._cluster.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, JOIN_S)

    # -- what an Elector is asked

    @property
    def epoch(self) -> int:
        return self._elector.epoch if self._elector else 0

    @property
    def leading(self) -> bool:
        return self._elector is not None and self._elector.leading

    @property
    def absence(self) -> OperatorAbsence | None:
        return self._elector.absence if self._elector else None

    @property
    def rival_address(self) -> str:
        return self._elector.rival_address if self._elector else ""

    @property
    def leaderless_s(self) -> float:
        return self._elector.leaderless_s if self._elector else math.inf

    @property
    def vouches(self) -> bool:
        return self._elector is not None and self._elector.vouches

    @property
    def standby_answers(self) -> StandbyAnswers:
        return self._started.standby_answers

    def check(self) -> None:
        self._started.check()

    async def acquire(self) -> int:
        return await self._over_there(self._started.acquire())

    async def hold(self) -> None:
        await self._over_there(self._hold(self._started))

    async def outgrow(self, epoch: int) -> None:
        await self._over_there(self._started.outgrow(epoch))

    async def release(self) -> None:
        if self._elector is not None:
            await self._over_there(self._elector.release())

    # -- over there

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    async def _open(self) -> None:
        self._cluster = await self._connect()
        self._elector = Elector(self._cluster, *self._arguments)

    async def _hold(self, elector: Elector) -> None:
        try:
            await elector.hold()
        except NotLeading as error:
            self._loop.call_later(EXIT_WITHIN_S, self._end_process, error)
            raise

    def _end_process(self, error: NotLeading) -> None:
        log.critical("the main loop did not end the process in %g s after its lease was lost: %s", EXIT_WITHIN_S, error)
        self._exit(1)

    @property
    def _started(self) -> Elector:
        assert self._elector is not None, "start() comes first"
        return self._elector

    async def _over_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the election's loop and return its result. Cancelling this cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
