"""Our loop as a job has it, with a record and a channel as an agent gives them."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from benchmarks.turns import Meter

if TYPE_CHECKING:
    from trainmaster.contract.wire.channel import Channel


def train(rank: int, folder: str, meter: Meter) -> None:
    """One rank, of the job in the environment. Ends with SystemExit."""
    from trainmaster.contract.wire import ProgressRecord, environment
    from trainmaster.contract.wire.channel import Channel
    from trainmaster.train import loop

    record = ProgressRecord.create(1, rank)
    mine, agents = Channel.pair()
    threading.Thread(target=_listen, args=(agents,), daemon=True).start()
    os.environ[environment.PROGRESS_FD] = str(record.fd)
    os.environ[environment.CHANNEL_FD] = str(mine.fileno())
    os.environ[environment.CHECKPOINT_DIR] = os.path.join(folder, "checkpoints")
    os.environ[environment.OUTPUT_DIR] = folder
    timed = loop.Training.one_step

    def one_step(self: Any) -> None:
        timed(self)
        meter.step(self.step, lambda: last_loss(self))

    def last_loss(training: Any) -> float:
        training.numbers.settle(wait=True)  # a device's numbers arrive a step or two late
        return float(training.numbers.last_loss)

    loop.Training.one_step = one_step  # type: ignore[method-assign]
    try:
        loop.main()
    finally:
        agents.close()


def _listen(channel: Channel) -> None:
    """What an agent is told has to be taken, or its ranks wait until it is."""
    with contextlib.suppress(OSError):
        while (received := channel.receive()) is not None:
            for fd in received[1]:
                os.close(fd)
