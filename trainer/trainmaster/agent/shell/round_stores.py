"""The TCPStores that this pod hosts: that of the running round, and one for the next round."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.ranks.output_pipe import Output
from trainmaster.agent.shell.zygote_client import Process, Zygotes
from trainmaster.agent.zygote import packets
from trainmaster.contract.wire import StoreAddress, environment
from trainmaster.contract.wire.channel import Channel
from trainmaster.host.own_package import code_of_call

NEXT_AFTER_S = 1.0  # the next store is opened after the first step, or then


@dataclass(eq=False)
class Store:
    output: Output
    channel: Channel
    process: Process | None = None
    address: StoreAddress | None = None
    lost: bool = False


class Stores:
    """The stores. `changed` is called when a store has opened or was lost. `keeps` says whether this pod is to keep a
    store open for the next round."""

    def __init__(
        self, settings: Settings, zygotes: Zygotes, changed: Callable[[], None], keeps: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._zygotes = zygotes
        self._changed = changed
        self._keeps = keeps
        self._timer: asyncio.TimerHandle | None = None  # while the next store waits for the round's first step
        self._current: Store | None = None
        self._next: Store | None = None

    @property
    def next_address(self) -> StoreAddress | None:
        return self._next.address if self._next is not None else None

    @property
    def lost(self) -> bool:
        """Return True if the store of the running round was hosted here and is gone."""
        return self._current is not None and self._current.lost

    def take(self, address: StoreAddress) -> None:
        """Use the store at `address` for the round that begins, and end the store of the old round."""
        old, self._current = self._current, None
        if self._next is not None and self._next.address == address:
            self._current, self._next = self._next, None
        self._end(old)

    def offer_later(self) -> None:
        """Let the next store wait for the first step of the round that starts, or for NEXT_AFTER_S seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(NEXT_AFTER_S, self.end_wait)

    def end_wait(self) -> None:
        """Open the next store now if it waits, and is to be kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.offer_if_kept()

    def offer_if_kept(self) -> None:
        """Open the next store if it is to be kept, and does not wait."""
        if self._keeps() and self._timer is None:
            self.offer()

    def offer(self) -> None:
        """Open a store for the next round unless one is open, or on its way."""
        if self._next is not None or not self._zygotes.alive:
            return
        link = self._zygotes.pristine()
        if link is None and not self._zygotes.without_forks:
            return
        ours, theirs = Channel.pair()
        store = self._next = Store(Output("[store] "), ours)
        host = self._settings.pod_ip
        env = {**self._settings.environ, environment.ROUND: "0", "OMP_NUM_THREADS": "1"}
        entry: dict[str, object] = {"kind": "store", "host": host}
        if link is None:
            link = self._zygotes.root()
            program = code_of_call("trainmaster.agent.zygote.store_process", "main")
            entry = {"kind": "exec", "argv": [sys.executable, "-c", program, host]}
        fds = {"output": store.output.write_fd, "channel": theirs.fileno()}
        store.process = self._zygotes.start(link, entry, env, "/", fds, lambda _: self._ended(store))
        theirs.close()
        store.output.started()
        ours.socket.setblocking(False)
        asyncio.get_running_loop().add_reader(ours.socket, self._receive, store)

    def kill_current(self) -> bool:
        """Kill the store of the running round, as an injected fault. Return False if it is not hosted here."""
        if self._current is None or self._current.lost:
            return False
        self._end(self._current)
        return True

    def end(self) -> None:
        self._end(self._current)
        self._end(self._next)
        self._current = self._next = None

    def _receive(self, store: Store) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            received = store.channel.receive()
            if received is None:
                asyncio.get_running_loop().remove_reader(store.channel.socket)
                return
            message, fds = received
            packets.close_all(fds)
            store.address = StoreAddress(self._settings.pod_ip, int(message["port"]))
            self._changed()

    def _ended(self, store: Store) -> None:
        store.lost = True
        store.output.drain()
        self._close(store)
        if store is self._next:
            self._next = None
        if store in (self._current, self._next) or store.address is not None:
            self._changed()

    def _end(self, store: Store | None) -> None:
        if store is not None and store.process is not None:
            store.process.signal(signal.SIGKILL)

    def _close(self, store: Store) -> None:
        if store.channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(store.channel.socket)
            store.channel.close()
        store.output.close()
