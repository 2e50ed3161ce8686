"""What a rank does when its world breaks: it saves the last completed step to its agent's memory, and then waits.

Most ranks raise an exception when a peer dies, and save in their own thread. A rank that is stuck in a collective
cannot, so a thread that listens to the agent saves for it. Parameters and optimizer hold the last completed step at all
times except while the optimizer runs; then `frozen` is held.
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
"""Seconds that a rank that has failed waits to be ended by its agent, before it ends on its own."""


_current: Rescue | None = None


def park() -> None:
    """Call `Rescue.park` for a script that ends by an exception, after its last words, if it takes part in rescues."""
    if _current is not None:
        _current.park()


class Rescue:
    """Saves the state of the last completed step after a failure.

    `save` writes the state and returns the step, or None if there is nothing to save.
    """

    def __init__(self, reporter: Reporter, save: Callable[[], int | None]) -> None:
        self.frozen = threading.Lock()
        self.mutating = False  # the optimizer runs, or has failed: what is there belongs to no step
        self._reporter, self._save = reporter, save
        self._watching = False
        self._asked: float | None = None
        self._once, self._over = threading.Lock(), False
        self._released = threading.Event()

    def watch(self) -> None:
        """Tell the agent that this rank can be asked for a rescue, and listen for it."""
        if self._watching or self._reporter.channel is None:
            return
        global _current
        _current = self
        self._watching = self._reporter.listened = True
        threading.Thread(target=self._listen, name="rescue", daemon=True).start()
        self._reporter.progress.flags |= RESCUES
        self._reporter.beat()

    def asked_s(self) -> float | None:
        """Return the seconds since the agent asked for a rescue, or None if it did not."""
        return None if self._asked is None else time.monotonic() - self._asked

    def park(self) -> None:
        """Save after the last words, and wait until the process is ended. Return after PARK_LIMIT_S seconds at most."""
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
        """Save, and tell the agent. `frozen` is not released, because no step may follow.

        A rank that was asked and then fails, too, waits for the save that is under way, and saves nothing more.
        """
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
