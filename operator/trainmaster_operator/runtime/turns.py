"""An event loop that takes few at a time, so that what decides something needn't wait for thousands that don't."""

from __future__ import annotations

import asyncio
import math
import os
import select
import selectors

IN_A_TURN = 16
"""Ready connections that a turn of the loop serves: some 15 ms of work. Decisions take a few turns (the API server is
asked in between), and with thousands of agents speaking at once a turn would last for seconds."""


class Turns(selectors.EpollSelector):
    """Tells of at most so many ready files at once. The kernel keeps those that are left for the next turn, and hands
    them out in rotation, so nobody is passed over."""

    def __init__(self, in_a_turn: int = IN_A_TURN) -> None:
        super().__init__()
        self._in_a_turn = in_a_turn
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))

    def close(self) -> None:
        self._epoll.close()
        super().close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the base class does; `timeout` in seconds."""
        wait_s = -1.0 if timeout is None else math.ceil(max(timeout, 0.0) * 1e3) * 1e-3
        ready = []
        keys = self.get_map()
        for file, mask in self._epoll.poll(wait_s, self._in_a_turn):
            key = keys[file]
            events = (mask & ~select.EPOLLIN and selectors.EVENT_WRITE) | (
                mask & ~select.EPOLLOUT and selectors.EVENT_READ
            )
            if events & key.events:
                ready.append((key, events & key.events))
        return ready


def loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(Turns())
