"""A port for a server that is started later, by its number: torch's rendezvous through variables takes no socket."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of an address of this machine on which nobody listens.

    It lies below the ports that the system gives to connections and to servers that ask for any: one of those could be
    taken again before its server starts. Raises OSError if no port is free.
    """
    first = int(RANGE.read_text().split()[0])
    candidates = range(_LOWEST, first) if first > _LOWEST else range(1024, first)
    for port in random.sample(candidates, min(100, len(candidates))):
        try:
            socket.create_server((address, port)).close()
        except OSError:
            continue
        return port
    raise OSError(f"no port of {address} is free")
