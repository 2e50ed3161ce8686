"""The tables of docs/goodput.md, from the runs that are committed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks import goodput, record
from benchmarks.goodput_account import OTHER, interval, ratio_interval
from benchmarks.goodput_faults import SHARES
from benchmarks.goodput_runners import NAMES, TRAINMASTER
from benchmarks.markdown import machines, table, wrapped

Row = dict[str, Any]


def tables() -> Iterator[str]:
    """Yield the lines of the block `goodput`."""
    rows = record.read_rows(goodput.RESULTS)
    if rows:
        yield from of_rows(rows)
    else:
        yield "No run is committed yet; `make bench-goodput` makes them."


def of_rows(rows: list[Row]) -> Iterator[str]:
    """Yield what these runs show. Of several sizes or scripts in one file the last one is shown."""
    last = rows[-1]
    rows = [row for row in rows if all(row[name] == last[name] for name in ("script", "steps", "ranks"))]
    calm = {row["system"]: row for row in rows if not row["mean_steps"]}
    struck = [row for row in rows if row["mean_steps"]]
    rates = sorted({row["mean_steps"] for row in struck}, reverse=True)
    systems = [name for name in NAMES if name in calm]
    seeds = len({row["seed"] for row in struck})
    yield from wrapped(
        f"{last['steps']} steps of `{last['script']}` over {last['ranks']} ranks in one pod; seeds of each rate: "
        f"{seeds}. {machines(rows)} Before a run the machine was busy with other things on {_busy(rows)} of its cores."
    )
    yield ""
    yield "Means over the seeds; in brackets the 95 % interval of Student's t over them."
    yield ""
    yield from table(
        ["steps between faults", "faults", "system", "saves every", "wall time, s", "goodput", "steps repeated"],
        [_cell(rate, name, [r for r in struck if r["mean_steps"] == rate]) for rate in rates for name in systems],
    )
    yield ""
    yield "Wall time over Trainmaster's in the run with the same faults; the geometric mean over the seeds, in brackets"
    yield "its 95 % interval."
    yield ""
    others = [name for name in systems if name != TRAINMASTER]
    yield from table(
        ["steps between faults", *others],
        [[f"{rate:g}", *(_ratio(struck, rate, name) for name in others)] for rate in rates],
    )
    yield ""
    yield "Seconds of standstill for one fault, over all runs: the median, the worst in brackets, and how many there"
    yield "were."
    yield ""
    kinds = [*SHARES, OTHER]
    yield from table(
        ["system", *kinds],
        [[name, *(_standstill(struck, name, kind) for kind in kinds)] for name in systems],
    )
    yield ""
    yield "Without faults:"
    yield ""
    yield from table(
        ["system", "a step, ms", "a save, ms", "until the first step, s", "wall time, s"],
        [
            [name, f"{r['step_s'] * 1e3:.1f}", f"{r['save_s'] * 1e3:.1f}", f"{r['start_s']:.1f}", f"{r['wall_s']:.1f}"]
            for name, r in calm.items()
        ],
    )
    yield ""
    unlike = goodput.unlike(rows)
    if unlike:
        yield f"**{len(unlike)} of {len(rows)} runs ended with other losses than the first.**"
    else:
        yield f"All {len(rows)} runs had bit for bit the same loss in every step, repeated steps included, and ended"
        yield f"with the same parameters (the last loss was {float.fromhex(last['last_loss']):.6f})."


def _cell(rate: float, system: str, rows: list[Row]) -> list[str]:
    own = [row for row in rows if row["system"] == system]
    if not own:
        return [f"{rate:g}", "", system, "", "not run", "", ""]
    every = sorted({row["every"] for row in own})
    repeated = statistics.mean(row["repeated_steps"] for row in own)
    return [
        f"{rate:g}",
        str(sum(row["struck"] for row in own)),
        system,
        " or ".join(map(str, every)) + " steps",
        _interval([row["wall_s"] for row in own], ".1f"),
        _interval([row["goodput"] for row in own], ".2f"),
        f"{repeated:.1f}",
    ]


def _interval(samples: list[float], how: str) -> str:
    return _told(interval(samples), how)


def _told(found: tuple[float, float, float], how: str) -> str:
    """Return a mean with its interval, which one sample has none of."""
    mean, low, high = found
    return f"{mean:{how}} (one run)" if math.isnan(low) else f"{mean:{how}} ({low:{how}} to {high:{how}})"


def _ratio(rows: list[Row], rate: float, system: str) -> str:
    walls: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["mean_steps"] == rate:
            walls.setdefault(row["system"], {})[row["seed"]] = row["wall_s"]
    both = sorted(walls.get(system, {}).keys() & walls.get(TRAINMASTER, {}).keys())
    if not both:
        return "not run"
    pairs = [walls[system][seed] for seed in both], [walls[TRAINMASTER][seed] for seed in both]
    return _told(ratio_interval(*pairs), ".2f")


def _standstill(rows: list[Row], system: str, kind: str) -> str:
    found = [s for row in rows if row["system"] == system for struck, s in row["standstills"] if struck == kind]
    return f"{statistics.median(found):.1f} ({max(found):.1f}), {len(found)}" if found else "none"


def _busy(rows: list[Row]) -> str:
    busy = [row["busy_cores_before"] + row["stolen_cores_before"] for row in rows]
    return f"{min(busy):.1f} to {max(busy):.1f}"
