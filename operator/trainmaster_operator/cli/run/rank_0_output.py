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
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from trainmaster_operator.cli.display.live_display import Display
from trainmaster_operator.cli.display.piece_of_news import News
from trainmaster_operator.cli.display.rank_output import RankOutput, shown
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.cli.display.status_diff import blamed
from trainmaster_operator.planning.facts.job_state import Failure

PRINTED_EVERY_S = 0.1
# Number of chunks of 64 KiB that are shown at the end of what rank 0 printed faster than it could be shown.
REST_CHUNKS = 16
_UNREAD = 16384  # Of the 65536 bytes of a pipe; the rest is kept free for messages of the run itself.

_PROGRESS = re.compile(r"step \d+ of \d+: loss ")
_EVALUATION = "evaluation: "
_TRACEBACK = "Traceback (most recent call last):"
_STORE_LOST = "trainmaster: the round's store doesn't answer: "

_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|gloo/transport|"
    r"NCCL communicator was aborted|ncclRemoteError"
)
"""What gloo, NCCL and torch say about a connection to a rank that has ended."""

_TORCH_LOG = re.compile(r"\[[IWEF]\d{4} [\d:.]+ \w+\.[ch]pp:\d+\] ")
_FRAME_OF_TORCH = re.compile(r"Exception raised from |frame #\d+: |<omitting python frames>|\s*$")
_PREFIX_OF_TORCH = re.compile(r"^\[rank\d+\]: ")

HOLD_S = 2.0
"""Seconds for which a traceback waits for the news of a failure, which may be another rank's."""

RECENT_S = 10.0
"""Seconds after a failure within which a traceback of another rank is taken for its consequence."""


class Teller:
    """Decides what the terminal shows of the lines of a rank.

    A traceback of a script is held back for a moment, because the rank may only have lost a rank that failed. Then the
    failure comes first, and one line takes the place of the traceback. All of it stays in the log of the rank.
    """

    def __init__(self, rank: int, *, own_loop: bool, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`own_loop`: the rank runs the built-in trainer. Then the display reports its steps and failures, and a
        traceback is usually about a connection to a rank that died; evaluations are shown in any case."""
        self._rank = rank
        self._word = f"rank {rank}"
        self._own_loop = own_loop
        self._quiet = quiet
        self._clock = clock
        self._in_traceback = False
        self._in_report_of_torch = False
        self._shown_traceback = False
        self._held: list[str] = []
        self._held_since = 0.0
        self._failure: Failure | None = None
        self._failure_at = 0.0

    def pick_news(self, line: bytes) -> list[News]:
        """Return what the terminal shows of the next line, and of lines that were held back before it."""
        text = shown(line)
        if self._is_of_torch_about_a_lost_peer(text):
            return []
        if self._own_loop:
            if text.startswith(_EVALUATION):
                return [News("evaluation", text.removeprefix(_EVALUATION))]
            if self._is_of_a_traceback(text) or _PROGRESS.match(text) or text.startswith(_STORE_LOST):
                return []
        if self._quiet:
            return []
        if not self._held and _TRACEBACK not in text:
            return [News(self._word, text)]
        if not self._held:
            self._held_since = self._clock()
        self._held.append(text)
        return self.overdue()

    def overdue(self) -> list[News]:
        """Return the lines that were held back for long enough."""
        if not self._held or self._clock() - self._held_since < HOLD_S:
            return []
        recent = self._clock() - self._failure_at < RECENT_S
        return self._release(self._failure if recent else None)

    def after_failure(self, failure: Failure | None) -> list[News]:
        """Return what is shown after the news of a failure: what a traceback of this rank has to do with it, and the
        lines that were held back."""
        self._failure, self._failure_at = failure, self._clock()
        shown_before, self._shown_traceback = self._shown_traceback, False
        if failure is not None and not self._held and shown_before and self._is_of_another_rank(failure):
            return [self._explain(failure)]
        return self._release(failure)

    def rest(self) -> list[News]:
        """Return the lines that are still held back, at the end of the run."""
        return self._release(self._failure)

    def _release(self, failure: Failure | None) -> list[News]:
        lines, self._held = self._held, []
        if not lines:
            return []
        first, last = _traceback_in(lines)
        has_lost_a_peer = _LOST.search(lines[last]) is not None
        # A pod that ends without a word of its ranks is a lost peer, too.
        without_rank = failure is not None and failure.rank is None and failure.pod != ""
        if failure is None or not (self._is_of_another_rank(failure) or (without_rank and has_lost_a_peer)):
            self._shown_traceback = failure is None
            return [News(self._word, text) for text in lines]
        kept = lines[:first] + lines[last + 1 :] if has_lost_a_peer else lines
        return [self._explain(failure), *(News(self._word, text) for text in kept)]

    def _is_of_another_rank(self, failure: Failure | None) -> bool:
        return failure is not None and failure.rank is not None and failure.rank != self._rank

    def _explain(self, failure: Failure) -> News:
        text = f"{blamed(failure)} failed first; the error of {self._word} most likely follows from it"
        return News(self._word, text)

    def _is_of_a_traceback(self, text: str) -> bool:
        """Return whether the line belongs to a traceback, from its first line to the one that names the exception."""
        if text.startswith(_TRACEBACK):
            self._in_traceback = True
        elif self._in_traceback and text and not text.startswith(" "):
            self._in_traceback = False
            return True
        return self._in_traceback

    def _is_of_torch_about_a_lost_peer(self, text: str) -> bool:
        """Return whether the line belongs to a report of torch's C++ code that a connection to a peer was lost, with
        its frames. It begins with a line of torch's log, and ends before the first line that is no frame."""
        if _TORCH_LOG.search(text):
            self._in_report_of_torch = _LOST.search(text) is not None
        elif self._in_report_of_torch and not _FRAME_OF_TORCH.match(text):
            self._in_report_of_torch = False
        return self._in_report_of_torch


def _traceback_in(lines: list[str]) -> tuple[int, int]:
    """Return the indexes of the first line of a traceback and of the last line that names an exception."""
    first = next(at for at, text in enumerate(lines) if _TRACEBACK in text)
    last, within = first, False
    for at, text in enumerate(lines):
        said = _PREFIX_OF_TORCH.sub("", text)
        if _TRACEBACK in said:
            within = True
        elif within and said and not said.startswith(" "):
            last, within = at, False
    return first, last


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
            self._tell_all(self._teller.pick_news(line))
        self._tell_all(self._teller.overdue())
        return lines is not None

    def show_rest(self) -> None:
        """Show the rest of the output after all processes have ended."""
        chunks = 0
        while self.show_new(wait=True):
            chunks += 1
            if chunks == REST_CHUNKS:
                self._display.tell(News("rank 0", f"(the rest of what it printed is in {self._logs})"))
                break
        self._tell_all(self._teller.rest())

    def after_failure(self, failure: Failure | None) -> None:
        """Show what waited for the news of a failure, and what a traceback of rank 0 has to do with it."""
        self._tell_all(self._teller.after_failure(failure))

    def _tell_all(self, pieces: Sequence[News]) -> None:
        for piece in pieces:
            self._display.tell(piece)


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
