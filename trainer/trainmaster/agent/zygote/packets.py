"""Packets between an agent and its zygotes: SOCK_SEQPACKET, one JSON object in each packet, with file descriptors.

A body that is too large for a packet (a long environment, a list of modules) is sent in a memory file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

INLINE = 60_000  # bytes; the kernel's default send buffer takes three of these
_MAX_FDS = 16


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, body: dict[str, Any], fds: list[int] | None = None) -> None:
    """Send a packet. Raises OSError if the other end is closed, and BlockingIOError if a non-blocking socket is
    full."""
    raw = json.dumps(body).encode()
    if len(raw) <= INLINE:
        socket.send_fds(sock, [raw], fds or [])
        return
    memory = os.memfd_create("trainmaster-packet", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(raw)
        socket.send_fds(sock, [b"M"], [*(fds or []), memory])
    finally:
        os.close(memory)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next packet and its file descriptors (close-on-exec), or None if the other end is closed."""
    try:
        raw, fds, _, _ = socket.recv_fds(sock, INLINE + 1, _MAX_FDS)
    except ConnectionResetError:
        return None
    if not raw:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    if raw == b"M":
        with os.fdopen(fds.pop(), "rb") as file:
            file.seek(0)
            raw = file.read()
    return json.loads(raw), fds


def close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
