"""Hosts one round's store in a process of its own, so that it outlives every rank: a TCPStore or, for frameworks that
don't speak to one, the exchange of addresses (`frameworks.rank_addresses`) or a server of the framework's own kind.

A store knows no password, so it listens on the address of its pod alone. A TCPStore that opens its port by itself does
so on every interface, whatever host it is given: it gets a socket that listens already.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from trainmaster.agent import frameworks
from trainmaster.agent.frameworks.rank_addresses import Roster
from trainmaster.contract.wire import channel, environment

PORT = "store"  # the message that tells the port: {"kind": "store", "port": n}


def host(address: str) -> None:
    """Open a store on a free port of `address`, tell the port over the channel, then stay until killed."""
    _allow_more_files()
    listener = listening(address)
    port = listener.getsockname()[1]
    serve = server_of(frameworks.find(os.environ.get(environment.FRAMEWORK, "Trainmaster")))
    holder = listener if serve is not None else opened(address, port, listener)
    link = channel.Channel.open(int(os.environ[environment.CHANNEL_FD]))
    link.send(PORT, {"port": port})
    if serve is not None:
        serve(listener)
    while holder is not None:
        signal.pause()


def _allow_more_files() -> None:
    """Let this process open as many files as the system lets it.

    Each rank of the job is connected to the store, and many systems start processes with a limit of 1,024 files.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # then it serves as many as it can
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def server_of(framework: frameworks.Framework) -> Callable[[socket.socket], None] | None:
    """Return what serves the ranks of a framework at a listening socket; None for a TCPStore."""
    if framework.store is not None:
        return framework.store
    return (lambda listener: Roster(listener).serve()) if framework.addresses else None


def opened(address: str, port: int, listener: socket.socket) -> Any:
    """Return the store that serves on `listener`.

    Without torch it is the listener itself: no process uses a store then, but scripts may need an address of their own.
    """
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        return listener
    fd = listener.detach()
    return distributed.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)


def listening(address: str) -> socket.socket:
    """Return a socket that listens on a free port of `address`, IPv4 or IPv6, and on no other address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)


def main() -> None:
    host(sys.argv[1])
