"""Step time of ranks that are pinned to cores of their own, beside ranks that the kernel moves as it likes.

    python -m benchmarks.pinning [--pairs 10] [--steps 60] [--ranks 2] [--no-write]

Ranks of our own loop on this machine, as many as it has cores or fewer, one thread each. Runs of both kinds take turns,
in alternating order; a sample is the median of a run's steps after the first ten. Prints the ratio of the speeds with
the lower end of its one-sided 95 % interval.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

from benchmarks import counts, worlds
from benchmarks.record import Case, name_of, write
from benchmarks.turns import lower_bound
from trainmaster.host import pinning

WARM_UP = 10  # steps
CONTEXT = 128
CASES: dict[str, str] = {"replicate": "dpReplicate", "shard": "dpShard"}
PINNED, DEFAULT = "pinned", "default"
_START = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"
)


def config(axis: str, ranks: int, steps: int) -> dict[str, Any]:
    return {
        "model": {"options": {"layers": 4, "width": 128, "heads": 4, "context": CONTEXT}},
        "data": {"path": "@stdlib"},
        "steps": WARM_UP + steps,
        "batch": {"global": 8 * ranks},
        "parallelism": {axis: ranks},
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--pairs", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=60, help="of a run, after its first ten (default: 60)")
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    arguments.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    given = arguments.parse_args()
    counts.check(arguments, given, steps=1, ranks=1)
    if given.pairs < 2:
        arguments.error("at least 2 pairs of runs tell something")
    try:
        shares = pinning.shares(pinning.cores(os.sched_getaffinity(0)), given.ranks)
    except ValueError as error:
        arguments.error(str(error))

    def pinned(rank: int, *command: str) -> list[str]:
        return [sys.executable, "-c", _START, ",".join(map(str, shares[rank])), *command]

    def default(rank: int, *command: str) -> list[str]:
        return [*command]

    results = []
    for name in given.cases:
        times = {system: Case(f"{name}, step", system, "s") for system in (DEFAULT, PINNED)}
        for pair in range(given.pairs):
            for system in sorted(times, reverse=bool(pair % 2)):
                inside = pinned if system == PINNED else default
                lines = worlds.train(config(CASES[name], given.ranks, given.steps), given.ranks, inside=inside)
                times[system].samples.append(statistics.median(line["seconds"] for line in lines[WARM_UP:]))
        ratios = times[DEFAULT].over(times[PINNED])
        bound = f", lower 95 % bound {lower_bound(ratios):.3f}" if len(ratios) >= 10 else ""
        medians = {system: f"{1e3 * case.median:.1f}" for system, case in times.items()}
        print(
            f"{name}: ms of a step {medians}, pinned is {statistics.median(ratios):.3f} times as fast{bound}",
            flush=True,
        )
        results += times.values()
    if not given.no_write:
        print(f"written to {write(name_of('pinning', given.cases, CASES), results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
