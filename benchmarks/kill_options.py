"""The options of benchmarks that kill ranks of whole runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser, *, runs: int, kills: int, limit_s: float, results: Path) -> None:
    """Add `--runs`, `--kills`, `--settle`, `--limit`, `--results` and `--seconds` with these defaults."""
    parser.add_argument("--runs", type=int, default=runs, help="of each system")
    parser.add_argument("--kills", type=int, default=kills, help="in each run")
    parser.add_argument(
        "--settle",
        type=float,
        nargs=2,
        default=(40.0, 8.0),
        metavar="S",
        help="seconds of training before the first kill of a run, and before all other kills",
    )
    parser.add_argument("--limit", type=float, default=limit_s, help="seconds of a run at most")
    parser.add_argument("--results", type=Path, default=results, help="runs that are there already are not made again")
    parser.add_argument("--seconds", type=float, default=86400.0, help="begin no further run after so many")


def check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End the program with a sentence if there would be no run or no kill."""
    for name in ("runs", "kills"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} {getattr(given, name)}: at least 1 is needed")
