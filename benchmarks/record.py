"""The one format of our results: machine facts, and raw samples per case and system."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass
class Case:
    case: str
    system: str
    unit: str
    samples: list[float] = field(default_factory=list)

    def quantile(self, q: float) -> float:
        """The q-quantile of the samples by linear interpolation. Raises ValueError without samples."""
        if not self.samples:
            raise ValueError(f"{self.case}/{self.system}: no samples")
        ordered = sorted(self.samples)
        at = q * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def over(self, other: Case) -> list[float]:
        """Each sample divided by the other's of the same turn. Raises ValueError if there aren't as many."""
        return [own / its for own, its in zip(self.samples, other.samples, strict=True)]


def machine() -> dict[str, str | int]:
    """Facts that a reader needs to judge the figures."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def load(name: str) -> tuple[dict[str, Any], list[Case]]:
    """Return the facts of the machine and the cases of `benchmarks/results/<name>.json`."""
    body = json.loads((RESULTS / f"{name}.json").read_text())
    return body["machine"], [Case(**case) for case in body["cases"]]


def name_of(name: str, chosen: Collection[object], every: Collection[object]) -> str:
    """Return the name of the file for results of these cases: `name` for all, else one that has theirs in it.

    Each file is of one machine, so results of some cases can neither be added to those of all nor take their place.
    """
    some = [str(case).replace(" ", "-") for case in chosen]
    return name if {*map(str, every)} <= {*map(str, chosen)} else "-".join([name, *some])


def write(name: str, cases: list[Case], **facts: str | float) -> Path:
    """Write `benchmarks/results/<name>.json`, with these facts beside the machine's, and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    body = {"machine": {**machine(), **facts}, "cases": [asdict(case) for case in cases]}
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a line to a file of rows, for a benchmark that is run in pieces; the machine's facts are in each row.

    The file's folder is made: nobody should learn after a run of minutes that it isn't there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({**row, "machine": machine()}) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file in their order; none of one that isn't there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
