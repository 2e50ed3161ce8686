"""Records of steps that each rank of a script makes by itself: what lies in a folder that ranks share.

    record-steps                   the request, see `profile_request`
    profile/.<identity>/round-2    a link to the folder of the records, made by the first rank that saw the request
    profile/.<identity>/rank-00003 how far this rank is (`Mark`)
    profile/steps-12-14.r2/        the records, which TensorBoard opens

The folder is that of a run on one machine, which all ranks share, or that of a pod's agent. Each rank records once: a
request that has not begun when ranks restart is kept, and one that has begun is over. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from trainmaster.contract.wire.atomic_replace import replace

FOLDER = "profile"
BEGUN, DONE, FAILED = "begun", "done", "failed"
AHEAD = 2  # steps from the one at whose end a rank sees the request to the first one that all ranks record
_SESSION = os.path.join("plugins", "profile")  # where TensorBoard's profile plugin looks
_OF_SESSIONS = (".xplane.pb", ".trace.json.gz")
_OF_TORCH = ".pt.trace.json.gz"
_WINDOW = re.compile(r"steps-(\d+)-(\d+)\.r\d+")
_MARK = re.compile(r"rank-(\d{5,})")
_WORDS = 300  # characters


@dataclass(frozen=True)
class Mark:
    """How far a rank is with a request: BEGUN, DONE or FAILED, and why."""

    state: str
    round: int
    words: str = ""

    @property
    def finished(self) -> bool:
        return self.state != BEGUN


@dataclass(frozen=True)
class Window:
    """The steps that ranks are to record, and the folder that gets the records."""

    first: int
    last: int
    folder: Path


def rank_name(rank: int) -> str:
    """Return the name of a rank in names of files, where TensorBoard expects the name of a machine."""
    return f"rank-{rank:05d}"


def place_of(name: str, session: str) -> str | None:
    """Return where a file of records belongs below the folder that TensorBoard opens; None if it shows no such file.

    `session`: the name under which TensorBoard shows records of TensorFlow and JAX.
    """
    if name.endswith(_OF_TORCH):
        return name
    return os.path.join(_SESSION, session, name) if name.endswith(_OF_SESSIONS) else None


def claim(folder: Path, identity: str, round: int, step: int, steps: int) -> Window:
    """Return the steps that are recorded for a request in this round. The first rank that asks decides, at the end of
    `step`. Raises OSError or ValueError."""
    link = _state(folder, identity) / f"round-{round}"
    link.parent.mkdir(parents=True, exist_ok=True)
    first = step + AHEAD
    with contextlib.suppress(FileExistsError):
        link.symlink_to(Path("..", f"steps-{first}-{first + steps - 1}.r{round}"))
    name = os.path.basename(os.readlink(link))
    match = _WINDOW.fullmatch(name)
    if match is None:
        raise ValueError(f"{link} names no steps")
    return Window(int(match[1]), int(match[2]), folder / FOLDER / name)


def write_mark(folder: Path, identity: str, rank: int, mark: Mark) -> None:
    """Write how far a rank is. Raises OSError."""
    state = _state(folder, identity)
    state.mkdir(parents=True, exist_ok=True)
    cut = Mark(mark.state, mark.round, mark.words[:_WORDS])
    replace(state / rank_name(rank), json.dumps(asdict(cut)).encode())


def read_marks(folder: Path, identity: str) -> dict[int, Mark]:
    """Return how far the ranks are that have begun. Raises OSError, and ValueError if a mark cannot be read."""
    found = {}
    for path in _entries(_state(folder, identity)):
        match = _MARK.fullmatch(path.name)
        if match is not None:
            found[int(match[1])] = _mark(path)
    return found


def _mark(path: Path) -> Mark:
    """Return the mark in a file. A rank of a newer release may have written more into it than is known here."""
    said = json.loads(path.read_bytes())
    try:
        return Mark(str(said["state"]), int(said["round"]), str(said.get("words", "")))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not say how far a rank is: {type(error).__name__}: {error}") from None


def files_of(folder: Path, identity: str) -> list[Path]:
    """Return the files of records that were made for a request and that TensorBoard shows."""
    found = []
    for link in _entries(_state(folder, identity)):
        if link.is_symlink() and link.exists():
            found += [path for path in sorted(link.resolve().rglob("*")) if place_of(path.name, "") and path.is_file()]
    return found


def work_folder(folder: Path, identity: str, rank: int) -> Path:
    """Return the folder in which a rank's profiler writes, before its files get the names of `place_of`."""
    return _state(folder, identity) / f"{rank_name(rank)}.work"


def forget(folder: Path, identity: str) -> None:
    """Remove what the ranks know about a request. The records stay."""
    shutil.rmtree(_state(folder, identity), ignore_errors=True)


def remove(folder: Path, identity: str) -> None:
    """Remove the records of a request too."""
    for link in _entries(_state(folder, identity)):
        if link.is_symlink():
            shutil.rmtree(link.resolve(), ignore_errors=True)
    forget(folder, identity)


def _state(folder: Path, identity: str) -> Path:
    return folder / FOLDER / f".{identity}"


def _entries(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir()) if folder.is_dir() else [])
