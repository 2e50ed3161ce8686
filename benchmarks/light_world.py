"""A world of ranks over TCP with the standard library alone, for scripts whose imports must cost nothing.

Rank 0 listens, writes its port into the folder, and adds up one number of each rank; `sum` is the only collective.
Whoever loses a peer, or waits for one for too long, raises OSError, as a collective of torch would.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path

_NUMBER = struct.Struct("!d")
_LOOK_S = 0.002


class LightWorld:
    def __init__(self, folder: Path, rank: int, size: int, timeout_s: float, join_s: float = 60.0) -> None:
        """Meet the other ranks within `join_s`; wait at most `timeout_s` for one in a collective."""
        self._peers: list[socket.socket] = []
        if rank == 0:
            self._gather(folder / "port", size, join_s)
        else:
            self._peers.append(_connected(folder / "port", join_s))
        for peer in self._peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(timeout_s)
        self._leads = rank == 0
        self.sum(0.0)  # nobody goes on before all have met

    def _gather(self, path: Path, size: int, join_s: float) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=size) as server:
            server.settimeout(join_s)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(str(server.getsockname()[1]))
            partial.replace(path)
            for _ in range(size - 1):
                self._peers.append(server.accept()[0])

    def sum(self, number: float) -> float:
        """Return the sum of this number over all ranks. Raises OSError if one is gone, or silent for too long."""
        if not self._leads:
            self._peers[0].sendall(_NUMBER.pack(number))
            return _received(self._peers[0])
        total = number + sum(_received(peer) for peer in self._peers)
        for peer in self._peers:
            peer.sendall(_NUMBER.pack(total))
        return total


def _connected(path: Path, join_s: float) -> socket.socket:
    """Connect to the rank that wrote the newest port; an older one leads nowhere any more."""
    deadline = time.monotonic() + join_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            return socket.create_connection(("127.0.0.1", int(path.read_text())), timeout=join_s)
        time.sleep(_LOOK_S)
    raise TimeoutError(f"rank 0 is not there after {join_s:g} s")


def _received(peer: socket.socket) -> float:
    data = b""
    while len(data) < _NUMBER.size:
        chunk = peer.recv(_NUMBER.size - len(data))
        if not chunk:
            raise ConnectionResetError("a peer is gone")
        data += chunk
    number: float = _NUMBER.unpack(data)[0]
    return number
