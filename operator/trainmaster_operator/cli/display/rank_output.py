"""What the ranks of a run on this machine print: its log files as they grow, and the last lines of the failed rank.

A log file belongs to a pod. The pod's agent writes `[rank 3] ` before each line of a rank. The files are read, never
the pipes of ranks, so a slow reader loses nothing and no training waits for it.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import stat
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from trainmaster_operator.api.compact_lists import unpack_ranges
from trainmaster_operator.cli.display.status_diff import News, blamed
from trainmaster_operator.cli.output_folder import LOGS
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState

LAST_LINES = 12
CHUNK = 65536  # Bytes of one file that are read at a time.
_LAST_BYTES = 262144  # Bytes at the end of a log in which the last lines of a rank are searched.
_UNREAD = 16384  # Of the 65536 bytes of a pipe; the rest is kept free for messages of the run itself.

_POD_LOG = re.compile(r".*-worker-(\d+)-(\d+)\.log")
_RANK = re.compile(rb"\[rank (\d+)\] ")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
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


class Tail:
    """Reads a growing file from offset `at` on, line by line. A line counts only when it is complete."""

    def __init__(self, path: Path, at: int = 0) -> None:
        self.path = path
        self.at = at
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Return the next lines, without their line ends; None if nothing is new or the file does not exist."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                data = file.read(CHUNK)
        except FileNotFoundError:
            return None
        if not data:
            return None
        self.at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole


class RankOutput:
    """The lines of one rank of a run from its start. Lines of earlier runs in `logs` are skipped."""

    def __init__(self, logs: Path, rank: int, ranks_per_pod: int) -> None:
        self._logs = logs
        self._rank = rank
        self._place = rank // ranks_per_pod
        self._before = {path: path.stat().st_size for path in pod_logs(logs)}
        self._tails: dict[Path, Tail] = {}
        self._slots: set[int] = set()

    def read(self, status: JobState) -> list[bytes] | None:
        """Return the next lines, from one chunk of one file; None if nothing is new. `status` shows which pods have
        run the rank."""
        slots = unpack_ranges(status.roundMap or "") or list(range(self._place + 1))
        if self._place < len(slots):
            self._slots.add(slots[self._place])
        for path in pod_logs(self._logs):
            if path not in self._tails and slot_of(path) in self._slots:
                self._tails[path] = Tail(path, self._before.get(path, 0))
        for tail in self._tails.values():
            lines = tail.read()
            if lines is not None:
                return [text for line in lines if (text := said_by(self._rank, line)) is not None]
        return None


def pod_logs(logs: Path) -> list[Path]:
    """Return the logs of a run's pods. The pod that printed last is at the end."""
    found = [path for path in logs.glob("*-worker-*.log") if _POD_LOG.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.stat().st_mtime, incarnation_of(path)))


def slot_of(log: Path) -> int:
    """Return the slot of the pod that writes this log."""
    match = _POD_LOG.fullmatch(log.name)
    return int(match[1]) if match else -1


def incarnation_of(log: Path) -> int:
    """Return which pod of its slot writes this log."""
    match = _POD_LOG.fullmatch(log.name)
    return int(match[2]) if match else -1


def rank_of(line: bytes) -> int | None:
    """Return the rank that printed a line of a log; None if the agent or another program of the container printed
    it."""
    match = _RANK.match(line)
    return int(match[1]) if match else None


def said_by(rank: int, line: bytes) -> bytes | None:
    """Return what the rank printed, without its prefix; None for a line of another rank."""
    return line[line.index(b"] ") + 2 :] if rank_of(line) == rank else None


def shown(line: bytes) -> str:
    """Return a line as text that moves no cursor: as a terminal would show it, without colours."""
    text = _ESCAPE.sub("", line.decode(errors="replace"))
    text = text.rstrip("\r").rpartition("\r")[2]  # A progress bar overwrites itself.
    return _CONTROL.sub("", text.expandtabs())


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


@dataclass(frozen=True)
class LastWords:
    """The last lines of a failed rank. `log`: the log of the rank that failed first or, if no rank is to blame
    (None), the directory of all logs."""

    log: Path
    rank: int | None = None
    lines: tuple[str, ...] = ()


def log_of(out: Path, failure: Failure | None) -> Path | None:
    """Return the log of the pod that failed; None if there was no failure, or it names no pod, or that pod has no
    log."""
    log = out / LOGS / f"{failure.pod}.log" if failure is not None and failure.pod else None
    return log if log is not None and log.is_file() else None


def last_words(out: Path, status: JobState) -> LastWords | None:
    """Return where a run's logs are, and the last lines of the rank that made it fail; None if nothing was printed."""
    logs, failure = out / LOGS, status.lastFailure
    log = log_of(out, failure)
    if status.phase is not JobPhase.FAILED or failure is None or log is None:
        return LastWords(logs) if pod_logs(logs) else None
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = file.read().removesuffix(b"\n").split(b"\n")
    if failure.rank is not None:
        lines = [said for line in lines if (said := said_by(failure.rank, line)) is not None]
    return LastWords(log, failure.rank, tuple(map(shown, lines[-LAST_LINES:])))
