"""The output of a rank: its lines are forwarded to the pod's log with a prefix, and the last ones are kept."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import termios
import time
from collections import deque
from collections.abc import Callable

_KEPT_LINES = 200
_LINE_LIMIT = 4096  # bytes of a line that are kept; all are forwarded
_PART_LIMIT = 65536  # bytes of a line without an end, as in binary output: then they count as a line
_READ = 65536
_BAR_S = 10.0  # how often a line that is written over again and again is forwarded


class Output:
    """A pipe whose lines are forwarded to the agent's own output, with a prefix. The last lines are kept.

    A progress bar writes over its line again and again. What it has written over is dropped, as on a terminal, and what
    it shows is forwarded at intervals. `now` returns the seconds of a monotonic clock.
    """

    def __init__(self, prefix: str, now: Callable[[], float] = time.monotonic) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._prefix = prefix.encode()
        self._rest = b""
        self._now = now
        self._forwarded_s = now()
        asyncio.get_running_loop().add_reader(self.read_fd, self._read)

    def started(self) -> None:
        """Close our writing end, because the process has its own now."""
        os.close(self.write_fd)
        self.write_fd = -1

    def drain(self) -> None:
        """Read what the pipe holds now. The last output of a process is read before its end is handled.

        What is written meanwhile is left for later, because a process may write faster than this agent reads.
        """
        held = self._held()
        while held >= 0 and (count := self._read()):
            held -= count  # one more read than necessary finds the end of the output

    def close(self) -> None:
        if self.read_fd < 0:
            return
        asyncio.get_running_loop().remove_reader(self.read_fd)
        os.close(self.read_fd)
        self.read_fd = -1
        if self.write_fd >= 0:
            self.started()
        if self._rest:
            self._forward(b"\n")

    def _held(self) -> int:
        """Return the number of bytes that the pipe holds, -1 if it is closed."""
        if self.read_fd < 0:
            return -1
        return int.from_bytes(fcntl.ioctl(self.read_fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    def _read(self) -> int:
        """Read once, and return the number of bytes. The event loop calls this again while there are more."""
        try:
            data = os.read(self.read_fd, _READ) if self.read_fd >= 0 else b""
        except BlockingIOError:
            return 0
        if data:
            self._forward(data)
        else:
            self.close()
        return len(data)

    def _forward(self, data: bytes) -> None:
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = _shown(rest)
        if len(self._rest) >= _PART_LIMIT:
            whole.append(self._rest)
            self._rest = b""
        elif b"\r" in rest and self._rest and self._now() - self._forwarded_s >= _BAR_S:
            whole.append(self._rest)
        if not whole:
            return
        self._forwarded_s = self._now()
        shown = [_shown(line).rstrip(b"\r") for line in whole]
        self.lines.extend(line[:_LINE_LIMIT].decode(errors="replace") for line in shown[-_KEPT_LINES:])
        with contextlib.suppress(OSError, ValueError):  # our output has no reader any more: the lines are kept
            sys.stdout.buffer.write(b"".join(self._prefix + line + b"\n" for line in shown))
            sys.stdout.buffer.flush()


def _shown(line: bytes) -> bytes:
    """Return what is left of a line in which carriage returns go back to its beginning, as a terminal shows it. Those
    at its end have written over nothing yet."""
    text = line.rstrip(b"\r")
    return text.rpartition(b"\r")[2] + line[len(text) :]
