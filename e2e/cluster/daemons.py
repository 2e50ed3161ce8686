"""Processes that outlive the command that started them, found again by pid and start time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.places import LOGS, STATE
from e2e.cluster.shell import ClusterError, until

_GRACE_S = 20.0


def start_time(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


class Daemon:
    def __init__(self, name: str, state: Path | None = None) -> None:
        """`state`: the folder of another cluster than our own."""
        self.name = name
        self.log = (state / "log" if state else LOGS) / f"{name}.log"
        self._record = (state or STATE) / "run" / f"{name}.json"

    @property
    def pid(self) -> int | None:
        """The process, if it lives: a pid that was given to another process doesn't count."""
        try:
            record = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            return None
        # One that had ended before it was written down has no start time, nor has whatever is gone.
        lives = record["started"] is not None and start_time(record["pid"]) == record["started"]
        return record["pid"] if lives else None

    def start(self, argv: Sequence[str | Path], *, child: bool = False, cwd: Path = Path("/")) -> None:
        """Start it unless it runs. `child`: the one process that `argv` forks is meant (see unshare --fork).

        Raises ClusterError if there is no such program, or it forks none.
        """
        if self.pid:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            try:
                process = subprocess.Popen(
                    [str(word) for word in argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=cwd,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise ClusterError(f"the program {argv[0]} is not installed") from None
        pid = process.pid
        if child:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            forked: list[str] = []

            def seen() -> bool:
                forked[:] = children.read_text().split()
                return bool(forked) or process.poll() is not None

            try:
                until(seen, 10, f"{self.name} didn't start")
            except ClusterError:
                process.kill()
                process.wait()
                raise
            pid = int(forked[0]) if forked else pid  # as it was seen: it may have ended since
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._record.write_text(json.dumps({"pid": pid, "started": start_time(pid)}))

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait until it is gone; by force after a while."""
        pid = self.pid
        for attempt in (number, signal.SIGKILL):
            if pid and self.pid == pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, attempt)  # once: a second SIGTERM makes Kubernetes' programs drop everything
                with contextlib.suppress(ClusterError):
                    until(lambda: self.pid != pid, _GRACE_S, "")
        if pid and self.pid == pid:
            raise ClusterError(f"{self.name} (process {pid}) can't be ended")
        self._record.unlink(missing_ok=True)

    def require(self) -> None:
        """Raise ClusterError with its last words if it doesn't run."""
        if not self.pid:
            words = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
            raise ClusterError(
                f"{self.name} ended: {words[-1] if words else 'it said nothing'} (all of it: {self.log})"
            )
