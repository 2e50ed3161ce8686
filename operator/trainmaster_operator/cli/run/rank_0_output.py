"""What the terminal shows of the output of rank 0 in a run on this machine, while the run is on and at its end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import select
import stat
import struct
import sys
import termios
from typing import TextIO

from trainmaster_operator.cli.display.live_display import Display
from trainmaster_operator.cli.display.rank_output import RankOutput, shown
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.cli.display.status_diff import News
from trainmaster_operator.planning.facts.job_state import Failure

PRINTED_EVERY_S = 0.1
# Number of chunks of 64 KiB that are shown at the end of what rank 0 printed faster than it could be shown.
REST_CHUNKS = 16
_UNREAD = 16384  # Of the 65536 bytes of a pipe; the rest is kept free for messages of the run itself.

_PROGRESS = re.compile(r"step \d+ of \d+: loss ")
_EVALUATION = "evaluation: "
_TRACEBACK = "Traceback (most recent call last):"


class Teller:
    """Decides what the terminal shows of the lines of a rank."""

    def __init__(self, rank: int, *, own_loop: bool, quiet: bool) -> None:
        """`own_loop`: the rank runs the built-in trainer. Then the display reports its steps and failures, and a
        traceback is usually about a connection to a rank that died; evaluations are shown in any case."""
        self._word = f"rank {rank}"
        self._own_loop = own_loop
        self._quiet = quiet
        self._in_traceback = False
        self._shown_traceback = False

    def pick_news(self, line: bytes) -> News | None:
        """Return what the terminal shows of the next line; None if it shows nothing of it."""
        text = shown(line)
        if self._own_loop:
            if text.startswith(_EVALUATION):
                return News("evaluation", text.removeprefix(_EVALUATION))
            if self._is_of_a_traceback(text) or _PROGRESS.match(text):
                return None
        if self._quiet:
            return None
        self._shown_traceback = self._shown_traceback or _TRACEBACK in text
        return News(self._word, text)

    def explain_traceback(self, failure: Failure | None) -> News | None:
        """Return what a traceback of this rank, shown since the last call, has to do with a failure of another rank."""
        shown, self._shown_traceback = self._shown_traceback, False
        if not shown or failure is None or failure.rank is None or self._word == f"rank {failure.rank}":
            return None
        return News(
            self._word, f"rank {failure.rank} failed first; the error of {self._word} most likely follows from it"
        )

    def _is_of_a_traceback(self, text: str) -> bool:
        """Return whether the line belongs to a traceback, from its first line to the one that names the exception."""
        if text.startswith(_TRACEBACK):
            self._in_traceback = True
        elif self._in_traceback and text and not text.startswith(" "):
            self._in_traceback = False
            return True
        return self._in_traceback


class Rank0Output:
    """Shows the lines of rank 0 between the news of a run."""

    def __init__(self, output: RankOutput, teller: Teller, scene: Scene, display: Display, logs: str) -> None:
        """`logs`: where all that ranks print is, for people."""
        self._output, self._teller = output, teller
        self._scene, self._display, self._logs = scene, display, logs

    async def follow(self) -> None:
        """Show new lines until this task is cancelled."""
        while True:
            self.show_new()
            await asyncio.sleep(PRINTED_EVERY_S)

    def show_new(self, *, wait: bool = False) -> bool:
        """Show what rank 0 has printed since the last call, or a part of it. Return whether there may be more.
        `wait`: wait for a terminal that is not ready; while the job runs, nothing waits for a terminal."""
        if not wait and not is_read(sys.stdout):
            return False
        lines = self._output.read(self._scene.status)
        for line in lines or ():
            if (piece := self._teller.pick_news(line)) is not None:
                self._display.tell(piece)
        return lines is not None

    def show_rest(self) -> None:
        """Show the rest of the output after all processes have ended."""
        chunks = 0
        while self.show_new(wait=True):
            chunks += 1
            if chunks == REST_CHUNKS:
                self._display.tell(News("rank 0", f"(the rest of what it printed is in {self._logs})"))
                return

    def explain_traceback(self, failure: Failure | None) -> None:
        """Show what a traceback of rank 0 has to do with a failure of another rank, if it has."""
        if (told := self._teller.explain_traceback(failure)) is not None:
            self._display.tell(told)


def is_read(stream: TextIO) -> bool:
    """Return whether writing to the stream would not block: the terminal is not paused, and the pipe is not full."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return True  # It is no file of the system, as in tests.
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        (unread,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
        return int(unread) < _UNREAD
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(0))
