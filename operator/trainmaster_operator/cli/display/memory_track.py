"""The memory of each rank over time in bounded space (when there are too many samples, every second one is dropped
and the interval doubles), and the maximum of each rank with its limit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from trainmaster.contract.wire.atomic_replace import replace
from trainmaster_operator.cli.display.number_words import memory

LIMIT = 600  # Maximum number of samples.
DEVICE, CONTAINER = "device", "container"


@dataclass(frozen=True)
class Most:
    """The maximum memory of one rank, and how full its device or container was at the worst moment. Sizes are in
    bytes."""

    size: int = 0
    used: int = 0
    limit: int = 0  # 0 if there is no limit, or none is known.
    of: str = ""  # device or container.

    @property
    def share(self) -> float:
        """The used share of the limit; 0 without a limit."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def beside(self) -> str:
        """The maximum and the limit in words; "" without a limit."""
        if not self.limit:
            return ""
        return f"{memory(self.used)} of its {self.of}'s {memory(self.limit)} ({self.share:.0%})"

    def with_(self, rank: dict[str, Any]) -> Most:
        """Return the maximum after one more sample of the rank, as the control channel reports it and its pod."""
        device = rank.get("device_peak_bytes") or rank.get("device_bytes") or 0
        size = device or max(rank.get("rss_peak_bytes") or 0, rank.get("rss_bytes") or 0)
        fullest = self
        for of, used, limit in (
            (DEVICE, device, rank.get("device_limit_bytes") or 0),
            (CONTAINER, rank.get("container_bytes") or 0, rank.get("container_limit_bytes") or 0),
        ):
            seen = Most(0, used, limit, of)
            if seen.share > fullest.share:
                fullest = seen
        return Most(max(self.size, size), fullest.used, fullest.limit, fullest.of)


class MemoryTrack:
    """Samples of the memory of a run. `samples`: (seconds since the job's first run began, {rank: bytes}). Arguments
    and results are in seconds since 1970. `most`: the maximum of each rank, over all runs."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, dict[int, int]]] = []
        self.interval_s = 0.0
        self.most: dict[int, Most] = {}

    def nearest(self) -> tuple[int, Most] | None:
        """Return the rank that came nearest to its limit; of several in one container, the one with most memory.
        Return None if no limit is known."""
        found = [(most.share, most.size, -rank) for rank, most in self.most.items() if most.limit]
        return (rank := -max(found)[2], self.most[rank]) if found else None

    def describe_nearest(self) -> str:
        """Return a sentence about the rank that came nearest to its limit; "" if no limit is known."""
        nearest = self.nearest()
        return f"Rank {nearest[0]} came nearest to its limit: {nearest[1].beside}." if nearest is not None else ""

    def add(self, now: float, ranks: Iterable[dict[str, Any]]) -> None:
        """Add a sample if one is due: device memory if there is some, else host memory."""
        ranks = list(ranks)
        for rank in ranks:
            number = rank["rank"]
            self.most[number] = self.most.get(number, Most()).with_(rank)
        if self.samples and now - self.samples[-1][0] < self.interval_s:
            return
        sizes = {rank["rank"]: rank.get("device_bytes") or rank.get("rss_bytes") or 0 for rank in ranks}
        sizes = {rank: size for rank, size in sizes.items() if size}
        if not sizes:
            return
        self.samples.append((now, sizes))
        if len(self.samples) > LIMIT:
            span = self.samples[-1][0] - self.samples[0][0]
            self.interval_s = max(self.interval_s * 2, 2 * span / LIMIT)
            self.samples = self.samples[::2]

    def write(self, path: Path) -> None:
        """Write the samples to a file. Raise OSError."""
        value = {
            "intervalSeconds": self.interval_s,
            "samples": [[at, sizes] for at, sizes in self.samples],
            "most": {rank: astuple(most) for rank, most in self.most.items()},
        }
        replace(path, json.dumps(value, separators=(",", ":")).encode())

    @classmethod
    def read(cls, path: Path) -> MemoryTrack:
        """Return the samples of an earlier run. They are empty if the file is missing or invalid, because they are
        only used to draw a curve."""
        track = cls()
        try:
            value = json.loads(path.read_bytes())
            track.interval_s = float(value["intervalSeconds"])
            track.samples = [
                (float(at), {int(rank): int(size) for rank, size in sizes.items()}) for at, sizes in value["samples"]
            ]
            track.most = {
                int(rank): Most(int(size), int(used), int(limit), str(of))
                for rank, (size, used, limit, of) in value.get("most", {}).items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()
        return track
