"""The tables of recoveries in docs/measured.md and README.md, from the runs that are committed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks import record
from benchmarks.markdown import machines, spread, table, wrapped
from benchmarks.record import Case
from benchmarks.recovery import BEST, DOCUMENTED, OURS, PHASES, RESULTS, part_medians, ratios, samples
from benchmarks.recovery_stamps import IMPORTS, PARTS

Row = dict[str, Any]
NOTHING = "No run is committed yet; `make bench-recovery` makes them."
NEVER = "never restarted"
NAMES = {"torch": "DDP", "light": "imports nothing"}


def section() -> Iterator[str]:
    """Yield the lines of the section in docs/measured.md."""
    yield "## From a rank's death to the next step, by the number of ranks"
    yield ""
    rows = record.read_rows(RESULTS)
    if not rows:
        yield NOTHING
        return
    yield "The same unmodified script under `trainmaster run`, and under torchrun with its store not shared:"
    yield "from the death of a rank's process to the first step that all have completed after it, all on the same"
    yield f"cores (`make bench-recovery`). {machines(rows)}"
    yield ""
    yield from compared(rows)
    yield ""
    yield "This is what these times consist of, as medians in seconds. *Restart* is the time in which the death is"
    yield "noticed, the other ranks are ended, the system prepares the next start, and processes are started; *imports*"
    yield "are those of the whole script, wherever it makes them."
    yield ""
    split = [
        [str(size), NAMES[script], name, *(f"{found[part]:.2f}" for part in PARTS)]
        for size, script in _kinds(rows)
        for name, system in (("Trainmaster", OURS), ("torchrun", BEST))
        if (found := part_medians(rows, size, script, system))
    ]
    yield from table(["ranks", "script", "system", *PARTS], split)
    yield ""
    yield "The phases of the same recoveries as Trainmaster's status has them, for DDP, as medians in seconds:"
    yield ""
    sizes = [size for size, script in _kinds(rows) if script == "torch" and samples(rows, size, script, OURS)]
    yield from table(
        ["ranks", *(name.replace("_", " ") for name in PHASES)],
        [[str(size), *(_phase(rows, size, name) for name in PHASES)] for size in sizes],
    )
    if len(sizes) > 2:
        points = [(math.log(size), math.log(statistics.median(samples(rows, size, "torch", OURS)))) for size in sizes]
        slope, _ = statistics.linear_regression(*zip(*points, strict=True))
        yield ""
        yield f"It grows with the number of ranks to the power of {slope:.2f} (least squares of the logarithms): each"
        yield "rank has to be forked and to compute a step on these cores, which a cluster would do side by side."


def readme() -> Iterator[str]:
    """Yield the lines of the block `recovery` in README.md."""
    rows = record.read_rows(RESULTS)
    if not rows:
        yield NOTHING
        return
    yield from compared(rows)
    yield ""
    yield from wrapped(
        " ".join(sentence for sentence in (explained(rows), documented(rows), machines(rows)) if sentence)
    )
    yield ""
    yield from wrapped(beside_jobset())


def beside_jobset() -> str:
    """Return a sentence about a killed rank on a cluster, under Trainmaster and under JobSet."""
    facts, (ours, other) = record.load("jobset")
    took = [f"{case.median:.2f} s ({min(case.samples):.2f} to {max(case.samples):.2f})" for case in (ours, other)]
    return (
        f"On a cluster ({ours.case}; all nodes on one machine of {facts['cores']} cores) the next step came after "
        f"{took[0]}, and under JobSet {facts['image'].rpartition(':v')[2]} after {took[1]} "
        "(`python -m benchmarks.jobset`)."
    )


def compared(rows: list[Row]) -> Iterator[str]:
    """Yield the table of both systems, with the range of the ratio over runs."""
    found = []
    for size, script in _kinds(rows):
        ours, peers = samples(rows, size, script, OURS), samples(rows, size, script, BEST)
        ran = [row for row in rows if (row["ranks"], row["script"]) == (size, script)]
        ratio = ratios(rows, size, script)
        found.append(
            [
                str(size),
                NAMES[script],
                spread(ours, NEVER),
                spread(peers, NEVER) if any(row["system"] == BEST for row in ran) else "not run",
                _range(ratio),
                _busy(ran),
            ]
        )
    head = ["ranks", "script", "Trainmaster", "torchrun", "ratio", "cores busy before"]
    yield from wrapped(
        "Each time is the median, with the range in brackets and the number of recoveries. The ratio is torchrun's "
        "median divided by Trainmaster's, of each run of the benchmark. The last column has the number of cores that "
        "other programs kept busy before a run."
    )
    yield ""
    yield from table(head, found)


def explained(rows: list[Row]) -> str:
    """Return how much of torchrun's time, at the smallest size, is imports."""
    size = min(row["ranks"] for row in rows)
    found = part_medians(rows, size, "torch", BEST)
    if not found:
        return ""
    imports, rest = found[IMPORTS], sum(found.values()) - found[IMPORTS]
    return (
        f"Of torchrun's time with DDP and {size} ranks, {imports:.1f} s are imports, which ranks that are forked from "
        f"the zygote don't repeat, and {rest:.1f} s everything else."
    )


def documented(rows: list[Row]) -> str:
    """Return what came of restarts under torchrun as its documentation has them."""
    tried = [row for row in rows if row["system"] == DOCUMENTED]
    if not tried:
        return ""
    came = sum(len(row["seconds"]) for row in tried)
    # Only ranks that came back are killed again: a run that never recovers has one kill, however many were planned.
    kills = sum(min(row["kills"], len(row["seconds"]) + 1) for row in tried)
    after = f"came back after {came} of {kills} kills" if came else "never came back after they had been killed once"
    return f"Torchrun was run with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`. Without this variable, the ranks {after}."


def _kinds(rows: list[Row]) -> list[tuple[int, str]]:
    return sorted({(row["ranks"], row["script"]) for row in rows}, key=lambda kind: (kind[0], [*NAMES].index(kind[1])))


def _range(ratios: list[float]) -> str:
    """The smallest and the largest, with the number of runs; of one run what it had."""
    if len(ratios) < 2:
        return f"{ratios[0]:.2g} (1 run)" if ratios else ""
    return f"{min(ratios):.2g} to {max(ratios):.2g} ({len(ratios)} runs)"


def _phase(rows: list[Row], size: int, phase: str) -> str:
    clocks = [
        clock
        for row in rows
        if (row["ranks"], row["script"], row["system"]) == (size, "torch", OURS)
        for clock in row["clocks"]
    ]
    case = Case(phase, OURS, "s", [clock[phase] for clock in clocks if phase in clock])
    return f"{case.median:.3f}" if case.samples else ""


def _busy(rows: list[Row]) -> str:
    busy = [row["busy_cores_before"] + row["stolen_cores_before"] for row in rows]
    return f"{min(busy):.1f} to {max(busy):.1f}"
