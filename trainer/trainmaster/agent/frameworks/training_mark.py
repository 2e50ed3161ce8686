"""The mark of a job beside an output folder of Trainer: since when this job trains into the folder, and how often.

Scripts may refuse an output folder that has files but no checkpoint, as run_clm.py of transformers does. So the mark
lies beside the folder. Where that is not possible, it lies in the folder: what lies beside the root of a volume is lost
with the pod, and a parent may be read-only. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from trainmaster.contract.wire import environment


@dataclass(frozen=True)
class Mark:
    """What earlier processes of this job have said.

    began_ns: when the first of them began to train into the folder, in nanoseconds since 1970, by the clock of the file
    system; 0: none has. several: one of them has trained into it several times.
    """

    began_ns: int = 0
    several: bool = False


def read(folder: Path) -> Mark:
    """Return what this job has said about an output folder, an absolute path."""
    found = []
    for path in _paths(folder):
        with contextlib.suppress(OSError):
            found.append(path.stat())
    return Mark(min((each.st_mtime_ns for each in found), default=0), any(each.st_size > 0 for each in found))


def write(folder: Path, several: bool = False) -> None:
    """Say that this job trains into a folder. If it cannot be written, a restart begins again."""
    for path in _paths(folder):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with open(path, "a") as file:
                file.write("several trainings\n" if several else "")
            return


def _paths(folder: Path) -> list[Path]:
    """Return where the mark may lie, the best place first."""
    name = f".trainmaster-{os.environ.get(environment.JOB_UID, '')}"
    beside = [] if folder.is_mount() else [folder.parent / f".{folder.name}{name}"]
    return [*beside, folder / name]
