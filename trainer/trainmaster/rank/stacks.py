"""The Python stack of a rank that seems to be stuck, without its help.

A rank registers a signal with `faulthandler`, whose handler is C: it writes the stack whatever holds the interpreter's
lock, a C call that never returns included. It writes behind the record in the memory file of its progress, whose
descriptor both sides have: the agent sets the place, sends the signal and reads. Only the main thread's stack, written
by the main thread: walking other threads while they run could crash a rank that is merely slow.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainmaster.contract.wire.progress_record import SIZE, ProgressRecord
from trainmaster.host import processes
from trainmaster.rank.user_traceback import OWN_FOLDERS

if TYPE_CHECKING:
    import asyncio

STACK_SIGNAL = 61
"""The signal at which a rank writes the stack of its main thread behind its record. It is a real-time signal, which
neither programs nor C libraries use."""

EVERY_S = 0.25  # a rank that is suspected is looked at
CHARACTERS = 3000  # of a stack that are told
ALTOGETHER = 64_000  # of one report
_READ = 128 * 1024
_FRAME = re.compile(r'^  File "([^"]*)", line (\d+|\?\?\?) in (.+)$', re.MULTILINE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d")
_SOURCE_BYTES = 1 << 20  # a larger file is not read for one line
_SOURCE_CHARACTERS = 80
_OURS = (*OWN_FOLDERS, "<frozen runpy>", "<frozen importlib", "<string>")


def listen(fd: int) -> None:
    """Write the stack of this rank's main thread at each signal to `fd`, the descriptor of its progress record."""
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=False, chain=False)


@dataclass
class Look:
    """What was seen of the stack of one rank."""

    stack: str = ""
    since: float = 0.0  # monotonic, when this stack was first seen
    at: float = 0.0  # ...and last
    asked: bool = False

    @property
    def still_s(self) -> float:
        return self.at - self.since if self.stack else 0.0


class Rank(Protocol):
    """The interface of a rank whose stack is read."""

    look: Look
    ended: bool
    record: ProgressRecord

    @property
    def program(self) -> int:
        """Return the pid of the process that trains, 0 if there is none."""
        ...


class Looks:
    """Reads the stacks of a round's ranks again and again while it is wanted. `ranks` returns the ranks of the running
    round."""

    def __init__(self, ranks: Callable[[], Sequence[Rank]]) -> None:
        self._ranks = ranks
        self._timer: asyncio.TimerHandle | None = None

    def want(self, wanted: bool) -> None:
        if wanted and self._timer is None:
            self._look()
        elif not wanted and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for rank in self._ranks():
                rank.look = Look()

    def _look(self) -> None:
        import asyncio  # in the agent, which has it; a rank starts sooner without it

        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)
        ranks = self._ranks()
        for rank in ranks:
            take(rank, min(CHARACTERS, ALTOGETHER // len(ranks)))
            ask(rank)


def take(rank: Rank, characters: int = CHARACTERS) -> None:
    """Read the stack that the rank has written after the last request, if it has."""
    if not rank.look.asked or rank.ended:
        return
    stack = shown(readable(os.pread(rank.record.fd, _READ, SIZE).decode(errors="replace")), characters)
    if not stack:
        return
    stack = with_source(stack)
    now = time.monotonic()
    if stack != rank.look.stack:
        rank.look.stack, rank.look.since = stack, now
    rank.look.at = now


def ask(rank: Rank) -> None:
    """Ask a rank to write its stack, if it handles the signal, which would end any other process."""
    pid = 0 if rank.ended else rank.program
    if not pid or processes.state(pid) in ("T", "Z", "") or not _catches(pid):
        return
    os.ftruncate(rank.record.fd, SIZE)
    os.lseek(rank.record.fd, SIZE, os.SEEK_SET)  # one open file, and so one place in it, on both sides
    rank.look.asked = True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, STACK_SIGNAL)  # the kernel prefers the main thread


def readable(dump: str) -> str:
    """Return faulthandler's output in the form of Python's tracebacks: most recent call last.

    The agent's own frames at the outer end are left out.
    """
    frames = _FRAME.findall(dump)
    while frames and frames[-1][0].startswith(_OURS):
        frames.pop()
    return "".join(f'  File "{path}", line {line}, in {name}\n' for path, line, name in reversed(frames))


def shown(stack: str, characters: int) -> str:
    """Return the innermost calls of a stack, in whole lines, with at most `characters` characters."""
    return stack if len(stack) <= characters else stack[-characters:].partition("\n")[2]


def with_source(stack: str) -> str:
    """Return the stack with the source line of the innermost call of the user's own code below it, as in a traceback.

    The line is cut to 80 characters. It is left out if its file is no small file of Python that can be read here.
    """
    lines = stack.splitlines(keepends=True)
    for at in range(len(lines) - 1, -1, -1):
        found = re.match(r'  File "(/[^"]*\.py)", line (\d+), in ', lines[at])
        if found is None or _LIBRARY.search(found[1]):
            continue
        source = _source_line(found[1], int(found[2]))
        return "".join([*lines[: at + 1], f"    {source}\n" if source else "", *lines[at + 1 :]])
    return stack


def _source_line(path: str, number: int) -> str:
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _SOURCE_BYTES:
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            line = next(itertools.islice(file, number - 1, None), "").strip()
    except (OSError, ValueError):
        return ""
    return line if len(line) <= _SOURCE_CHARACTERS else line[: _SOURCE_CHARACTERS - 1] + "…"


def _catches(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (STACK_SIGNAL - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False
