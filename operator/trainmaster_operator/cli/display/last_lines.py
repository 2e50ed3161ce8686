"""The last lines of the rank that made a run on this machine fail, from the log of its pod."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trainmaster_operator.cli.display.rank_output import pod_logs, said_by, shown
from trainmaster_operator.cli.output_folder import LOGS
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState

LAST_LINES = 12
_LAST_BYTES = 262144  # Bytes at the end of a log in which the last lines of a rank are searched.


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
    return LastWords(log, failure.rank, tuple(map(shown, _without_repetition(lines)[-LAST_LINES:])))


def _without_repetition(lines: list[bytes]) -> list[bytes]:
    """Return the lines with their end only once. A rank that fails in the same way in each round ends its log with the
    same traceback several times."""
    repeated = {length: _repeated_lines(lines, length) for length in range(1, LAST_LINES + 1)}
    length = max(repeated, key=repeated.__getitem__)  # of several, the shortest
    return lines[: len(lines) - repeated[length]]


def _repeated_lines(lines: list[bytes], length: int) -> int:
    """Return the number of lines at the end that only repeat the `length` lines before them."""
    same = 0
    while same + length < len(lines) and lines[-1 - same] == lines[-1 - same - length]:
        same += 1
    return same - same % length
