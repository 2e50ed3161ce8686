"""Per-rank memory over time, in bounded space: with each overflow every second sample goes and the pace halves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LIMIT = 600  # samples


class MemoryTrack:
    """`samples`: (seconds since the job's first run began, {rank: bytes}). Unix seconds go in and come out."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, dict[int, int]]] = []
        self.interval_s = 0.0

    def add(self, now: float, ranks: Iterable[dict[str, Any]]) -> None:
        """Takes a sample if one is due; device memory where there is some, else host memory."""
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
        temporary = path.with_suffix(".tmp")
        value = {"intervalSeconds": self.interval_s, "samples": [[at, sizes] for at, sizes in self.samples]}
        temporary.write_text(json.dumps(value, separators=(",", ":")))
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> MemoryTrack:
        """Of an earlier run; empty when there is none or it can't be understood: it only draws a curve."""
        track = cls()
        try:
            value = json.loads(path.read_bytes())
            track.interval_s = float(value["intervalSeconds"])
            track.samples = [
                (float(at), {int(rank): int(size) for rank, size in sizes.items()}) for at, sizes in value["samples"]
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()
        return track
