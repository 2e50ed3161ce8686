"""Hosts one round's TCPStore in a process of its own, so that it outlives every rank."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from trainmaster.contract.wire import channel, environment

PORT = "store"  # the message that tells the port: {"kind": "store", "port": n}


def host(address: str) -> None:
    """Open a store on a free port of `address`, tell the port over the channel, then stay until killed."""
    distributed = importlib.import_module("torch.distributed")
    store = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    link = channel.Channel.open(int(os.environ[environment.CHANNEL_FD]))
    link.send(PORT, {"port": store.port})
    while True:
        signal.pause()


def main() -> None:
    host(sys.argv[1])
