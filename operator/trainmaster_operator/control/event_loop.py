"""An event loop in which thousands of agents wait behind the few connections that decisions are made over.

With thousands speaking at once a turn of an ordinary loop lasts for seconds, and a decision takes several turns: it
asks the API server in between, and hears of pods and jobs. Here the answers of the API server come in each turn, and of
the agents so many as cost little time.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import socket
from collections import ChainMap
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

IN_A_TURN = 16
"""Connections of the crowd that a turn serves: some 15 ms of work."""

Key = selectors.SelectorKey


class Turns(selectors.BaseSelector):
    """Tells of all that is ready, but only of so many files of `crowd`. The kernel keeps those that are left, and hands
    them out in rotation, so nobody is passed over."""

    def __init__(self, in_a_turn: int = IN_A_TURN) -> None:
        self.crowd: set[int] = set()  # descriptors, before they are registered
        self._in_a_turn = in_a_turn
        self._few, self._many = selectors.EpollSelector(), selectors.EpollSelector()
        self._many_epoll = select.epoll.fromfd(os.dup(self._many.fileno()))
        self._of_many = self._few.register(self._many.fileno(), selectors.EVENT_READ)
        maps = self._many.get_map(), self._few.get_map()
        self._map: Mapping[FileDescriptorLike, Key] = ChainMap(*maps)  # type: ignore[arg-type]  # it is only read

    def register(self, fileobj: FileDescriptorLike, events: int, data: object = None) -> Key:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        return (self._many if descriptor in self.crowd else self._few).register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> Key:
        return self._holder(fileobj).unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: object = None) -> Key:
        return self._holder(fileobj).modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[Key, int]]:
        """As any selector does; `timeout` in seconds."""
        ready = self._few.select(timeout)
        told = [one for one in ready if one[0] is not self._of_many]
        if len(told) < len(ready):
            keys = self._many.get_map()
            for descriptor, mask in self._many_epoll.poll(0, self._in_a_turn):
                key = keys[descriptor]
                write = mask & ~select.EPOLLIN and selectors.EVENT_WRITE
                read = mask & ~select.EPOLLOUT and selectors.EVENT_READ
                if (write | read) & key.events:
                    told.append((key, (write | read) & key.events))
        return told

    def get_map(self) -> Mapping[FileDescriptorLike, Key]:
        return self._map

    def close(self) -> None:
        self._many_epoll.close()
        self._few.close()
        self._many.close()

    def _holder(self, fileobj: FileDescriptorLike) -> selectors.EpollSelector:
        return self._many if fileobj in self._many.get_map() else self._few


class _OfCrowd(socket.socket):
    """Leaves the crowd as it is closed, before its descriptor can be another's."""

    def __init__(self, sock: socket.socket, crowd: set[int]) -> None:
        super().__init__(fileno=sock.detach())
        self._crowd = crowd
        crowd.add(self.fileno())

    def close(self) -> None:
        self._crowd.discard(self.fileno())
        super().close()


class TurnLoop(asyncio.SelectorEventLoop):
    """Whoever accepts a connection may put it into the crowd."""

    def __init__(self) -> None:
        self._turns = Turns()
        super().__init__(self._turns)

    def in_crowd(self, sock: socket.socket) -> socket.socket:
        """The same connection, to be used instead of `sock`, which is left empty."""
        made = _OfCrowd(sock, self._turns.crowd)
        made.setblocking(False)
        return made
