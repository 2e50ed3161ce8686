"""What a rank does when the world around it breaks: it saves the last completed step to its agent's memory, then waits.

Most ranks raise when a peer dies; those save in their own thread. One that is stuck in a collective can't, so a thread
that listens to the agent does it for it. Parameters and optimizer hold the last completed step at any time except while
the optimizer runs: `frozen` is held then.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from trainmaster.contract.wire import channel as wire
from trainmaster.contract.wire.progress_record import RESCUES
from trainmaster.rank.reporter import Reporter

PARK_LIMIT_S = 10.0
"""How long a rank that has failed waits for its agent's verdict on it before it ends of itself."""


_current: Rescue | None = None


def park() -> None:
    """Of a script that ends by an exception, after its last words: what `Rescue.park` does, if it takes part."""
    if _current is not None:
        _current.park()


class Rescue:
    """`save` writes the state of the last completed step and returns that step, or None if there is nothing to save."""

    def __init__(self, reporter: Reporter, save: Callable[[], int | None]) -> None:
        self.frozen = threading.Lock()
        self.mutating = False  # the optimizer runs, or has failed: what is there belongs to no step
        self._reporter, self._save = reporter, save
        self._watching = False
        self._asked: float | None = None
        self._once, self._over = threading.Lock(), False
        self._released = threading.Event()

    def watch(self) -> None:
        """Promise to the agent that a rescue can be asked for."""
        if self._watching or self._reporter.channel is None:
            return
        global _current
        _current = self
        self._watching = self._reporter.listened = True
        threading.Thread(target=self._listen, name="rescue", daemon=True).start()
        self._reporter.progress.flags |= RESCUES
        self._reporter.beat()

    def asked_s(self) -> float | None:
        """How long ago the agent asked for a rescue, None if it didn't."""
        return None if self._asked is None else time.monotonic() - self._asked

    def park(self) -> None:
        """After the last words: save, and wait for the end. Returns if nobody ends this process."""
        if self._watching:
            self._rescue()
            self._released.wait(PARK_LIMIT_S)

    def _listen(self) -> None:
        channel = self._reporter.channel
        assert channel is not None
        while True:
            try:
                received = channel.receive()
            except OSError:
                received = None
            if received is None:  # the agent has hung up
                self._released.set()
                return
            message, fds = received
            for fd in fds:
                os.close(fd)
            if message.get("kind") == wire.RESCUE:
                self._asked = time.monotonic()
                self._reporter.send(wire.RESCUING, {})
                self._rescue()

    def _rescue(self) -> None:
        """Save, and tell the agent. `frozen` isn't given back: no step may follow. A rank that was asked and then fails
        too waits for what is being saved, and saves nothing more."""
        with self._once:
            if not self._over:
                self._freeze_and_save()
                self._over = True

    def _freeze_and_save(self) -> None:
        self.frozen.acquire()
        step = None
        try:
            if not self.mutating:
                step = self._save()
        except Exception as error:  # noqa: BLE001 the state is lost with this process, which is what a rescue is against
            print(f"trainmaster: the last step can't be saved: {error!r}", file=sys.stderr)
        self._reporter.send(wire.RESCUED, {"step": step})
