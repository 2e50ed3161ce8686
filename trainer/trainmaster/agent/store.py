"""Hosts one round's TCPStore in a process of its own, so that it outlives every rank."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from typing import Any

from trainmaster.contract.wire import channel, environment

PORT = "store"  # the message that tells the port: {"kind": "store", "port": n}


def host(address: str) -> None:
    """Open a store on a free port of `address`, tell the port over the channel, then stay until killed."""
    holder: Any
    try:
        distributed = importlib.import_module("torch.distributed")
        holder = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        port = holder.port
    except ImportError:
        # Without torch nobody here speaks to a store; scripts may still want an address that is theirs alone.
        holder = socket.create_server((address, 0))
        port = holder.getsockname()[1]
    link = channel.Channel.open(int(os.environ[environment.CHANNEL_FD]))
    link.send(PORT, {"port": port})
    while True:
        signal.pause()


def main() -> None:
    host(sys.argv[1])
