"""The tables of docs/goodput.md and README.md about goodput, from the runs that are committed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks import goodput, record
from benchmarks.goodput_account import OTHER, ratio_interval
from benchmarks.goodput_faults import SHARES
from benchmarks.goodput_runners import NAMES, TRAINMASTER
from benchmarks.markdown import machines, table, wrapped

Row = dict[str, Any]
NOTHING = "No run is committed yet; `make bench-goodput` makes them."


def tables() -> Iterator[str]:
    """Yield the lines of the block `goodput`."""
    rows = record.read_rows(goodput.RESULTS)
    yield from of_rows(rows) if rows else [NOTHING]


def headline() -> Iterator[str]:
    """Yield the lines of the block `goodput-in-short`."""
    rows = record.read_rows(goodput.RESULTS)
    yield from in_short(rows) if rows else [NOTHING]


def readme() -> Iterator[str]:
    """Yield the lines of the block `goodput-with-most-faults`."""
    rows = record.read_rows(goodput.RESULTS)
    yield from with_most_faults(rows) if rows else [NOTHING]


def with_most_faults(rows: list[Row]) -> Iterator[str]:
    """Yield a table of the highest rate of faults: what share of the time was of use, and how long whole runs took."""
    rows, _, struck, rates, systems = _sorted_out(rows)
    rate = rates[-1]
    yield from table(
        [f"a fault in {rate:g} steps", *systems],
        [["goodput", *_goodputs(struck, rate, systems)], ["wall time", *_wall_times(struck, rate, systems)]],
    )
    yield ""
    yield from wrapped(
        f"Goodput is the mean over {len({row['seed'] for row in struck})} seeds, with the range. Wall time is the "
        "duration of whole runs divided by that of Trainmaster's runs with the same faults, with its 95 % interval in "
        "brackets. If this interval contains 1, the measurement shows no difference."
    )


def in_short(rows: list[Row]) -> Iterator[str]:
    """Yield one table: what share of the time was of use at each rate of faults, how long whole runs took, and what one
    fault cost."""
    rows, calm, struck, rates, systems = _sorted_out(rows)
    step_s = statistics.median(row["step_s"] for row in calm.values())
    lines = [[f"goodput, a fault in {rate:g} steps", *_goodputs(struck, rate, systems)] for rate in rates]
    lines += [[f"wall time, a fault in {rate:g} steps", *_wall_times(struck, rate, systems)] for rate in rates]
    lines += [[f"standstill: {kind}, s", *(_median(struck, name, kind) for name in systems)] for kind in SHARES]
    yield from table(["", *systems], lines)
    yield ""
    yield from wrapped(
        f"Goodput is the mean over {len({row['seed'] for row in struck})} seeds, with the range. Wall time is the "
        "duration of a run divided by that of Trainmaster's run with the same faults: the geometric mean over the "
        "seeds, "
        "with its 95 % interval by Student's t. If the interval contains 1, the measurement shows no difference. "
        "Standstill is the median of the time for which one fault stops the training. "
        f"A step takes {step_s * 1e3:.0f} ms here, so faults come every few seconds. At the rate of a real cluster "
        "every "
        "goodput is closer to 1, and only the standstill of a fault stays the same."
    )


def _sorted_out(rows: list[Row]) -> tuple[list[Row], dict[str, Row], list[Row], list[float], list[str]]:
    """Return the rows of the last script and size, those without faults by system, those with faults, the rates of
    faults from the lowest on, and the systems."""
    last = rows[-1]
    rows = [row for row in rows if all(row[name] == last[name] for name in ("script", "steps", "ranks"))]
    calm = {row["system"]: row for row in rows if not row["mean_steps"]}
    struck = [row for row in rows if row["mean_steps"]]
    rates = sorted({row["mean_steps"] for row in struck}, reverse=True)
    return rows, calm, struck, rates, [name for name in NAMES if name in calm]


def of_rows(rows: list[Row]) -> Iterator[str]:
    """Yield what these runs show. Of several sizes or scripts in one file the last one is shown."""
    last = rows[-1]
    rows, calm, struck, rates, systems = _sorted_out(rows)
    seeds = len({row["seed"] for row in struck})
    yield from wrapped(
        f"{last['steps']} steps of `{last['script']}` over {last['ranks']} ranks in one pod; seeds of each rate: "
        f"{seeds}. {machines(rows)} Before a run, other programs kept {_busy(rows)} of its cores busy."
    )
    yield ""
    yield "The figures are means over the seeds, with the range in brackets. If all faults of a seed come after the"
    yield "last step, its run has no fault."
    yield ""
    yield from table(
        ["steps between faults", "faults", "system", "saves every", "wall time, s", "goodput", "steps repeated"],
        [_cell(rate, name, [r for r in struck if r["mean_steps"] == rate]) for rate in rates for name in systems],
    )
    yield ""
    yield "The wall time divided by that of Trainmaster's run with the same faults: the geometric mean over the seeds,"
    yield "with its 95 % interval by Student's t in brackets."
    yield ""
    others = [name for name in systems if name != TRAINMASTER]
    yield from table(
        ["steps between faults", *others],
        [[f"{rate:g}", *(_ratio(struck, rate, name) for name in others)] for rate in rates],
    )
    yield ""
    yield "Seconds of standstill for one fault, over all runs: the median, the longest in brackets, and the number of"
    yield "faults."
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
        _range([row["wall_s"] for row in own], ".1f"),
        _range([row["goodput"] for row in own], ".2f"),
        f"{repeated:.1f}",
    ]


def _goodputs(struck: list[Row], rate: float, systems: list[str]) -> list[str]:
    return [
        _range([row["goodput"] for row in struck if (row["mean_steps"], row["system"]) == (rate, name)], ".2f")
        for name in systems
    ]


def _wall_times(struck: list[Row], rate: float, systems: list[str]) -> list[str]:
    """Return the wall time under each system over Trainmaster's."""
    return ["1" if name == TRAINMASTER else _ratio(struck, rate, name) for name in systems]


def _range(samples: list[float], how: str) -> str:
    """Return the mean with the smallest and the largest; of one run what it had."""
    if not samples:
        return "not run"
    return _told((statistics.mean(samples), *((min(samples), max(samples)) if samples[1:] else (math.nan, 0))), how)


def _median(rows: list[Row], system: str, kind: str) -> str:
    found = [s for row in rows if row["system"] == system for struck, s in row["standstills"] if struck == kind]
    return f"{statistics.median(found):.1f} ({len(found)} faults)" if found else "none"


def _told(found: tuple[float, float, float], how: str) -> str:
    """Return a mean with what lies around it, which one sample has none of."""
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
