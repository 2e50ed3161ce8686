"""The reports of a rank while it runs: its progress record, messages on its agent's channel, and metrics.jsonl.

Without an agent (plain python, torchrun) there is neither a record nor a channel, and nothing is reported. Nothing here
waits for a device: numbers are read when they have arrived on the host.
"""

from __future__ import annotations

import os
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmaster.contract.wire import channel as wire
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.channel import Channel
from trainmaster.contract.wire.progress_record import OBEYS_STOP, Control, OtherRecord, Phase, Progress, ProgressRecord
from trainmaster.host import rank_memory
from trainmaster.host.step_timing import Rhythm
from trainmaster.rank import collective_counter, failure_message, metrics_writer
from trainmaster.rank.metrics_writer import MetricsWriter


@dataclass
class Reporter:
    """The reports of one rank. `output` is the folder of metrics.jsonl, on rank 0."""

    rank: int = 0
    round: int = 0
    record: ProgressRecord | None = None
    channel: Channel | None = None
    output: Path | None = None
    progress: Progress = field(default_factory=Progress)
    rhythm: Rhythm = field(default_factory=Rhythm)
    listened: bool = False  # another thread receives what the agent sends
    _metrics: MetricsWriter = field(default_factory=MetricsWriter)

    @classmethod
    def from_environment(cls) -> Reporter:
        """Return the reporter of this process. Raises SystemExit if its agent is of another version."""
        env = os.environ
        progress_fd, channel_fd = _inherited(environment.PROGRESS_FD), _inherited(environment.CHANNEL_FD)
        try:
            record = ProgressRecord.open(progress_fd) if progress_fd is not None else None
        except OtherRecord as error:
            raise SystemExit(failure_message.refuse(str(error))) from None
        channel = Channel.open(channel_fd) if channel_fd is not None else None
        rank, round = int(env.get("RANK", "0")), int(env.get(environment.ROUND, "0"))
        output = env.get(environment.OUTPUT_DIR)
        reporter = cls(rank, round, record, channel, Path(output) if output else None)
        now = time.monotonic_ns()
        reporter.progress = Progress(round=round, rank=rank, started_ns=now, beat_ns=now)
        return reporter

    @property
    def under_agent(self) -> bool:
        return self.record is not None

    def obeys_stop(self) -> None:
        """Promise to check `stop_at` after each step."""
        self.progress.flags |= OBEYS_STOP
        self.beat()

    def beat(self) -> None:
        """Publish `progress`, as a sign of life."""
        if self.record is None:
            return
        now = time.monotonic_ns()
        self.rhythm.beat(self.progress, now)
        self.progress.beat_ns = now
        self.record.write(self.progress)

    def phase(self, phase: Phase) -> None:
        self.progress.phase = phase
        self._weigh()
        self.beat()

    def stepped(self, step: int, tokens: int) -> None:
        """Note that the host has completed a step in which this rank consumed `tokens`."""
        self.progress.step = step
        self.progress.tokens += tokens
        self.rhythm.stepped(self.progress, time.monotonic_ns(), collective_counter.waited_ns())
        if not self.progress.first_step_ns:
            self.progress.first_step_ns = time.monotonic_ns()
        self._weigh()
        self.beat()

    def loss(self, step: int, loss: float) -> None:
        """Note the loss of a step. It is published with the next beat."""
        self.progress.device_step, self.progress.loss = step, loss

    def control(self) -> Control:
        return self.record.control() if self.record is not None else Control()

    def metrics(self, **line: Any) -> None:
        """Append a line to metrics.jsonl, on rank 0 only. A step that is run again appears again, with its round.

        On a full disk, lines are lost, but training continues: the first lost line is reported as an event.
        """
        if self.rank == 0 and self.output is not None:
            self._metrics.append(self.output, line, self.event)

    def last_step_written(self) -> int:
        """Return the step of the last complete line of metrics.jsonl, 0 without one, or if this rank writes none."""
        return 0 if self.rank != 0 or self.output is None else metrics_writer.last_step(self.output)

    def send(self, kind: str, fields: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a message to the agent. An agent that is gone soon ends this rank, so that is not an error here."""
        if self.channel is None:
            return
        self._discard_replies()
        try:
            self.channel.send(kind, fields, fds)
        except OSError as error:
            print(f"trainmaster: the agent can't be told {kind}: {error}", file=sys.stderr)

    def event(self, reason: str, message: str) -> None:
        """Report an event for people."""
        print(f"trainmaster: {reason}: {message}", file=sys.stderr, flush=True)
        self.send(wire.EVENT, {"reason": reason, "message": message})

    def staged(self, message: dict[str, Any], fd: int) -> None:
        self.send(wire.STAGED, message, [fd])

    def resumed(self, step: int, checkpoint: str | None, tier: str = "") -> None:
        now = time.monotonic_ns()
        self.progress.step = self.progress.resumed_step = step
        self.progress.loaded_ns = now
        self.beat()
        self.send(wire.RESUMED, {"step": step, "checkpoint": checkpoint, "tier": tier})

    def _weigh(self) -> None:
        if self.record is not None:
            rank_memory.weigh(self.progress)

    def _discard_replies(self) -> None:
        """Read and ignore results of uploads, so that they do not fill the socket. The agent reports them, too."""
        assert self.channel is not None
        if self.listened:
            return
        while select.select([self.channel], [], [], 0)[0]:
            try:
                received = self.channel.receive()
            except OSError:
                return
            if received is None:
                return
            for fd in received[1]:
                os.close(fd)


def _inherited(name: str) -> int | None:
    """Return the descriptor that a variable names, or None if this process does not have it.

    A program that a rank starts by `subprocess` gets the variable alone.
    """
    if not os.environ.get(name):
        return None
    fd = int(os.environ[name])
    try:
        os.fstat(fd)
    except OSError:
        return None
    return fd
