"""An event loop in which thousands of agents do not delay the few connections that decisions need.

If thousands of agents send at once, a turn of an ordinary loop lasts for seconds, and a decision takes several turns:
it calls the API server in between, and receives events of pods and jobs. In this loop the answers of the API server are
handled in each turn, and only as many agents as take little time.
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
"""Number of connections of the crowd that a turn serves: about 15 ms of work."""

Key = selectors.SelectorKey


class Turns(selectors.BaseSelector):
    """A selector that returns everything that is ready, but only a limited number of files of `crowd`. The kernel
    keeps the others and returns them in rotation, so each gets its turn."""

    def __init__(self, in_a_turn: int = IN_A_TURN) -> None:
        self.crowd: set[int] = set()  # File descriptors, before they are registered.
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
        """Return what is ready, as every selector does. `timeout`: seconds."""
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
    """A socket that leaves the crowd when it is closed, before its descriptor can be reused."""

    def __init__(self, sock: socket.socket, crowd: set[int]) -> None:
        super().__init__(fileno=sock.detach())
        self._crowd = crowd
        crowd.add(self.fileno())

    def close(self) -> None:
        self._crowd.discard(self.fileno())
        super().close()


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop that lets the code that accepts a connection put it into the crowd."""

    def __init__(self) -> None:
        self._turns = Turns()
        super().__init__(self._turns)

    def in_crowd(self, sock: socket.socket) -> socket.socket:
        """Return the same connection as a socket of the crowd. `sock` is empty afterwards."""
        made = _OfCrowd(sock, self._turns.crowd)
        made.setblocking(False)
        return made
