"""Run the rows of a command within a budget of time. Each row is written down and printed as soon as it is known."""

from __future__ import annotations

import argparse
import fnmatch
import gc
import importlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.cuda import child
from trainmaster.rank import metrics_writer

SECONDS = 540.0
"""The default budget of a command: it ends within ten minutes, with a minute to spare."""
WIDTH = 15  # characters of a column
PRELOADED = (
    "trainmaster.train.loop",
    "trainmaster.tools.parity",
    "trainmaster.models.llama",
    "trainmaster.data.token_windows",
)
"""What all work needs, imported once, before the first fork."""
GOOD, BAD, FAILED, NOT_HERE, NO_TIME = "good", "BEYOND", "FAILED", "not here", "no time left"
FACTS_LIMIT_S = 60.0


class NotHere(Exception):
    """Why a row can't be had on this machine, in words. It counts neither as good nor as bad."""


@dataclass(frozen=True)
class Setting:
    """Where a command runs. facts: of the device; None: there is none, and all is of toy size."""

    folder: Path
    facts: dict[str, Any] | None

    @property
    def toy(self) -> bool:
        return self.facts is None

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cpu" if self.toy else "cuda"

    @property
    def job_device(self) -> str:
        """As a job names it in training.device: a rank that doesn't get what it asks for ends."""
        return "CPU" if self.toy else "CUDA"

    @property
    def words(self) -> str:
        """For the head of a table."""
        if self.facts is None:
            return "cpu, toy size"
        return f"{self.facts['name']}, {self.facts['memory_gib']} GiB, torch {torch.__version__}"

    def log(self, row: str) -> Path:
        """What the processes of a row print."""
        return self.folder / "logs" / f"{file_name(row)}.log"


Numbers = dict[str, Any]
"""What is known of a row. "passed": whether it is as it has to be; left out of rows that only measure. "said": a line
for people below the row."""


@dataclass(frozen=True)
class Row:
    """A row of a table. `work(limit_s)` raises WorkFailed or NotHere. It isn't begun with less than `least_s` left.
    `limit_s`: the most seconds that a row gets on a device."""

    name: str
    work: Callable[[float], Numbers]
    least_s: float = 10.0
    limit_s: float = 120.0


@dataclass(frozen=True)
class Part:
    """One of the commands. columns: heads of what `cells` makes of the numbers of a row."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[Setting], list[Row]]
    cells: Callable[[Numbers], Sequence[str]]


def file_name(row: str) -> str:
    """A row's name as a part of a file's."""
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in row)


def run(
    part: Part,
    setting: Setting,
    seconds: float,
    patterns: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, str]:
    """Run the rows whose names fit one of the patterns (all without any), in their order; return how each ended.

    Each row is appended to `<folder>/<part>.jsonl` before the next one begins.
    """
    setting.folder.mkdir(parents=True, exist_ok=True)
    ends, began = clock() + seconds, datetime.now(UTC).isoformat(timespec="seconds")
    rows = chosen(part.rows(setting), patterns)
    line = partial(_line, max((len(row.name) for row in rows), default=0))
    print(f"\n{part.name}: {setting.words}\n{line('row', 'how', part.columns)}", flush=True)
    statuses: dict[str, str] = {}
    for row in rows:
        left = ends - clock()
        # Rows share the little time of a device. At toy size they have none to share, and the machine may be busy.
        limit = left if setting.toy else min(row.limit_s, left)
        status, numbers, words = _ended(row, limit) if left >= row.least_s else (NO_TIME, {}, "")
        statuses[row.name] = status
        fields = {"part": part.name, "row": row.name, "status": status, "words": words, "began": began}
        written = finite({**fields, "device": setting.facts or "cpu", **numbers})
        record.append_row(setting.folder.parent / f"{part.name}.jsonl", written)
        print(line(row.name, status, part.cells(numbers) if numbers else ()), flush=True)
        if words:
            print(f"    {words}", flush=True)
    return statuses


def _ended(row: Row, limit_s: float) -> tuple[str, Numbers, str]:
    """(status, numbers, words for people) of a row."""
    try:
        numbers = row.work(limit_s)
    except NotHere as reason:
        return NOT_HERE, {}, str(reason)
    except child.WorkFailed as reason:
        return FAILED, {}, str(reason)
    except Exception as error:  # noqa: BLE001 it is told, and the rows behind this one are still worth having
        traceback.print_exc()
        return FAILED, {}, f"{type(error).__name__}: {error}"
    return GOOD if numbers.get("passed", True) else BAD, numbers, numbers.get("said", "")


def finite(value: Any) -> Any:
    """The same for JSON, which has no NaN and no infinity: they become strings."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return metrics_writer.finite(value)


def chosen(rows: Iterable[Row], patterns: Sequence[str]) -> list[Row]:
    return [row for row in rows if not patterns or any(fnmatch.fnmatch(row.name, f"*{p}*") for p in patterns)]


def _line(name_width: int, name: str, status: str, cells: Sequence[str]) -> str:
    return f"{name:<{name_width}} {status:<12}" + "".join(f" {cell:>{WIDTH}}" for cell in cells).rstrip()


def last_line(part: str, statuses: dict[str, str]) -> str:
    """What came of a command, for people."""
    counts = {status: [*statuses.values()].count(status) for status in (GOOD, BAD, FAILED, NOT_HERE, NO_TIME)}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    late = [name for name, status in statuses.items() if status == NO_TIME]
    words = " ".join(f'"{name}"' for name in late)
    return f"{part}: {told or 'no row'}" + (f"; `--rows {words}` runs those that are left" if late else "")


def device_facts() -> dict[str, Any] | None:
    """Of the device that work gets. To be called in a fork: it touches CUDA."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30),
        "capability": f"{properties.major}.{properties.minor}",
        "count": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
    }


def parts() -> dict[str, Part]:
    """By their names, in the order in which they are worth running."""
    names = ("works", "runs", "speed", "checkpoints", "parity", "profile")
    return {name: importlib.import_module(f"benchmarks.cuda.{name}").PART for name in names}


def read(arguments: Sequence[str] | None, known: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda", description="What works on this GPU, how fast it is, and what it costs."
    )
    parser.add_argument("parts", nargs="*", metavar="COMMAND", help=f"one or more of {', '.join(known)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/cuda"), help="folder of results (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="budget of each command in seconds (default: %(default).0f)"
    )
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="PATTERN", help="only rows whose name holds one of these"
    )
    given = parser.parse_args(arguments)
    unknown = [name for name in given.parts if name not in known]
    if unknown:
        parser.error(f"{unknown[0]} is no command; there are {', '.join(known)}")
    if not given.seconds > 0:
        parser.error(f"--seconds {given.seconds:g}: a number above 0 is expected")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: no row was bad. 1: some were, or had no time. 2: the command line was wrong, or the device can't be
    used."""
    known = parts()
    given = read(arguments, known)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # forks leave it alone, so their memory stays shared
    try:
        facts = child.run(device_facts, given.out / "facts.log", FACTS_LIMIT_S)
    except child.WorkFailed as reason:  # NVML has found a device, and torch can't use it: the driver is too old, …
        print(f"cuda: this machine's device can't be used: {reason}", file=sys.stderr)
        return 2
    good, known_rows = True, 0
    for name in given.parts or known:
        statuses = run(known[name], Setting(given.out / name, facts), given.seconds, given.rows)
        print(f"{last_line(name, statuses)}; all numbers: {given.out / name}.jsonl", flush=True)
        known_rows += len(statuses)
        good = good and not {BAD, FAILED, NO_TIME} & {*statuses.values()}
    if not known_rows:
        print(f"cuda: --rows {' '.join(given.rows)}: no row has such a name")
        return 2
    return 0 if good else 1
