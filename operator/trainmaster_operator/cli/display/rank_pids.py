"""The pids of ranks on this machine: the command of a run writes them, and `trainmaster status` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainmaster.contract.wire.atomic_replace import replace
from trainmaster_operator.local import process_tree

MOST_RANKS = 16  # That are named on the line.


class RankPids:
    """Keeps a file with the pid of each rank and the time at which that process started, so that a later process with
    the same pid is not taken for the rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[int, int] = {}

    def write(self, ranks: Iterable[dict[str, Any]]) -> None:
        """Replace the file if a rank has another pid now. Raise OSError."""
        pids = {rank["rank"]: rank["pid"] for rank in ranks if rank.get("pid")}
        if pids == self._known:
            return
        found = process_tree.table()
        alive = {rank: [pid, found[pid].started] for rank, pid in sorted(pids.items()) if pid in found}
        replace(self._path, json.dumps(alive).encode())
        self._known = pids

    def remove(self) -> None:
        """Delete the file, because the run has ended. Raise OSError."""
        self._path.unlink(missing_ok=True)


def describe(path: Path) -> str:
    """Return the pids of the ranks that are alive, as a sentence; "" if none is, or if the file is missing or
    invalid."""
    try:
        written = {
            int(rank): (int(pid), int(started)) for rank, (pid, started) in json.loads(path.read_bytes()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return ""
    found = process_tree.table()
    alive = [(r, pid) for r, (pid, began) in sorted(written.items()) if pid in found and found[pid].started == began]
    if not alive:
        return ""
    words = [f"rank {rank}: pid {pid}" for rank, pid in alive[:MOST_RANKS]]
    more = len(alive) - len(words)
    return "Processes: " + ", ".join(words) + (f" and {more} more" if more else "")
