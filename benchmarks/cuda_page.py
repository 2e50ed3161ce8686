"""The tables of docs/gpu.md that say what one device showed, from the rows of `make cuda` that are committed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks import record
from benchmarks.markdown import table, wrapped

RESULTS = record.RESULTS / "cuda.jsonl"
NOTHING = "No run is committed yet; `make cuda` makes them."
MEASURED = ("good", "BEYOND", "FAILED")

Row = dict[str, Any]


def newest(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """Return the last row of each name that was measured, by the command and the name; what wasn't is left out."""
    return {(row["part"], row["row"]): row for row in rows if row["status"] in MEASURED}


def block() -> Iterator[str]:
    """Yield the lines of the block."""
    rows = newest(record.read_rows(RESULTS))
    if not rows:
        yield NOTHING
        return
    devices = dict.fromkeys(f"{row['device']['name']}, torch {row['machine']['torch']}" for row in rows.values())
    yield from wrapped(
        f"Measured on: {'; '.join(devices)}. If a row was measured twice, the last result counts. The rows with "
        f"all samples are in `benchmarks/results/cuda.jsonl`."
    )
    yield ""
    yield from table(["command", "rows", "good", "not good"], [*_counts(rows)])
    for part, made in {"runs": _runs, "works": _killed, "speed": _speed, "checkpoints": _checkpoints}.items():
        lines = [*made([row for (name, _), row in rows.items() if name == part and row["status"] != "FAILED"])]
        if lines:
            yield ""
            yield from lines


def _counts(rows: dict[tuple[str, str], Row]) -> Iterator[list[str]]:
    for part in dict.fromkeys(part for part, _ in rows):
        own = {name: row for (of, name), row in rows.items() if of == part}
        bad = [f"{name} ({row['status']})" for name, row in own.items() if row["status"] != "good"]
        yield [part, str(len(own)), str(len(own) - len(bad)), "; ".join(bad) or "none"]


def _runs(rows: list[Row]) -> Iterator[str]:
    found = [row for row in rows if "total_s" in row]
    if found:
        phases = [*dict.fromkeys(phase for row in found for phase in row["phases_s"])]
        yield "A killed rank under `trainmaster run`: seconds from the failure to the first new step, by phase."
        yield ""
        yield from table(
            ["job", "in all", *phases, "steps lost", "resumes from"],
            [
                [
                    row["row"],
                    f"{row['total_s']:.2f}",
                    *(f"{row['phases_s'].get(phase, 0.0):.2f}" for phase in phases),
                    str(row["lost_steps"]),
                    row["tier"] or "its own checkpoint",
                ]
                for row in found
            ],
        )
    for row in rows:
        if row["words"].startswith("Proven"):
            yield ""
            yield from wrapped(f"{row['row']}: *{row['words']}*")


def _killed(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        if "samples" in row:
            phases = [*row["samples"][0]]
            medians = [statistics.median(sample[phase] for sample in row["samples"]) for phase in phases]
            yield "The same without `trainmaster run`, with 4 GiB of the device allocated: medians of"
            yield f"{len(row['samples'])} kills, in seconds."
            yield ""
            yield from table([name.replace("_", " ") for name in phases], [[f"{value:.3f}" for value in medians]])


def _speed(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield "Tokens per second, and their ratio to those of the loop written by hand: the median, and the range over"
        yield "turns."
        yield ""
        yield from table(["model", "tokens/s", "by hand", "ratio", "MFU", "by hand"], [_speeds(row) for row in rows])


def _speeds(row: Row) -> list[str]:
    speeds, shares = row["tokens_per_s"], row["mfu"]
    names = [*speeds]
    ratios = [own / other for own, other in zip(*(speeds[name] for name in names), strict=True)]
    return [
        row["row"],
        *(f"{row['median'][name]:,.0f}" for name in names),
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        *(f"{shares[name]:.1%}" if shares[name] is not None else "unknown" for name in names),
    ]


def _checkpoints(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield from wrapped(
            "Checkpoints of one rank, in seconds. *Each save* is how long the loop was in each of the three saves, one "
            "after another: in memory it copies the state to the host, and to storage it waits until the save before "
            "is written. *Stall* is how much longer a save makes the steps around it, as a median."
        )
        yield ""
        yield from table(
            ["model and tier", "state, GB", "build", "step", "each save", "stall", "load"],
            [
                [
                    row["row"],
                    f"{row['state_bytes'] / 1e9:.1f}",
                    f"{sum(row['build_s'].values()):.2f}",
                    f"{row['calm_step_s']:.3f}",
                    _saves(row),
                    f"{row['stall_s']:.3f}",
                    f"{row['load_s']:.2f}",
                ]
                for row in rows
            ],
        )


def _saves(row: Row) -> str:
    seconds = row["saved"]["seconds"]
    return ", ".join(f"{taken:.2f}" for taken in seconds["save"] or seconds["save to memory"])
