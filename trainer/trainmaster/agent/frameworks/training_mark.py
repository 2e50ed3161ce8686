"""The mark of a job beside an output folder of Trainer: since when this job trains into the folder, and how often.

Scripts may refuse an output folder that has files but no checkpoint, as run_clm.py of transformers does. So the mark
lies beside the folder. Where that is not possible, it lies in the folder: what lies beside the root of a volume is lost
with the pod, and a parent may be read-only. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainmaster.contract.wire import environment

_SINCE, _ROUND, _SEVERAL = "since", "round", "several trainings"
"""How the lines of a mark begin."""


@dataclass(frozen=True)
class Mark:
    """What earlier processes of this job have said.

    began_ns: when the first of them began to train into the folder, in nanoseconds since 1970, by the clock of the file
    system; 0: none has. several: one of them has trained into it several times. in_this_round: one of them has begun in
    the round of this process, so it was not restarted, and this is another training.
    """

    began_ns: int = 0
    several: bool = False
    in_this_round: bool = False


def read(folder: Path) -> Mark:
    """Return what this job has said about an output folder, an absolute path."""
    times: list[int] = []
    lines: list[str] = []
    for path in _paths(folder):
        with contextlib.suppress(OSError):
            # Its own time is that of the last line. The file is empty if a process has just created it.
            written_ns = path.stat().st_mtime_ns
            told = path.read_text(errors="replace").splitlines()
            times.append(min(_times(told), default=written_ns))
            lines += told
    return Mark(min(times, default=0), _SEVERAL in lines, _this_round() in lines)


def write(folder: Path, several: bool = False) -> None:
    """Say that this job trains into a folder in this round. If it cannot be written, a restart begins again."""
    for path in _paths(folder):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with open(path, "a") as file:
                lines = [f"{_SINCE} {os.fstat(file.fileno()).st_mtime_ns}", _this_round(), *[_SEVERAL][: int(several)]]
                file.write("".join(f"{line}\n" for line in lines if line))
            return


def _times(lines: Iterable[str]) -> list[int]:
    words = [line.split() for line in lines]
    return [int(each[1]) for each in words if len(each) == 2 and each[0] == _SINCE and each[1].isdecimal()]


def _this_round() -> str:
    """Return the line for the round of this process, with its store; "" if it is not known.

    A run on this machine that was killed as a whole may begin a round of the same number again, at another store.
    """
    round, store = (os.environ.get(name, "") for name in (environment.ROUND, environment.STORE))
    return f"{_ROUND} {round} {store}".rstrip() if round else ""


def _paths(folder: Path) -> list[Path]:
    """Return where the mark may lie, the best place first."""
    name = f".trainmaster-{os.environ.get(environment.JOB_UID, '')}"
    beside = [] if folder.is_mount() else [folder.parent / f".{folder.name}{name}"]
    return [*beside, folder / name]
