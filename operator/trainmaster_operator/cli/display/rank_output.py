"""What the ranks of a run on this machine print: its log files as they grow.

A log file belongs to a pod. The pod's agent writes `[rank 3] ` before each line of a rank. The files are read, never
the pipes of ranks, so a slow reader loses nothing and no training waits for it.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainmaster_operator.api.compact_lists import unpack_ranges
from trainmaster_operator.cli.terminal_text import without_controls, without_escapes
from trainmaster_operator.planning.facts.job_state import JobState

CHUNK = 65536  # Bytes of one file that are read at a time.

_POD_LOG = re.compile(r".*-worker-(\d+)-(\d+)\.log")
_RANK = re.compile(rb"\[rank (\d+)\] ")


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
    text = without_escapes(line.decode(errors="replace"))
    text = text.rstrip("\r").rpartition("\r")[2]  # A progress bar overwrites itself.
    return without_controls(text.expandtabs()).replace("\n", "")


def silent(rank: int) -> str:
    """Return the line for a user who asked for a rank that has printed nothing."""
    return f"trainmaster: rank {rank} has printed nothing; --all shows all ranks\n"
