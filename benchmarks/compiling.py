"""Tokens/s with and without `training.compile`, and what the first step of a run takes: compiled, and from the cache.

    python -m benchmarks.compiling [--pairs 10] [--steps 30] [--cases replicate shard] [--no-write]

Two ranks on loopback. Runs with and without take turns, in alternating order; a sample is the median of a run's steps
after the first ten. The first compiled run of a case finds an empty cache, all others what it has left. Prints the
ratio of each case with the lower end of its one-sided 95 % interval.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from typing import Any

from benchmarks import counts, worlds
from benchmarks.record import Case, name_of, write
from benchmarks.turns import lower_bound

RANKS = 2
WARM_UP = 10  # steps
CONTEXT = 128
CASES: dict[str, dict[str, Any]] = {"replicate": {"dpReplicate": RANKS}, "shard": {"dpShard": RANKS}}
SYSTEMS = {"eager": False, "compiled": True}


def config(parallelism: dict[str, Any], steps: int, compiled: bool) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "options": {"layers": 4, "width": 128, "heads": 4, "context": CONTEXT}},
        "data": {"path": "@stdlib"},
        "steps": WARM_UP + steps,
        "batch": {"global": 16},
        "parallelism": parallelism,
        "compile": compiled,
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--pairs", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=30, help="of a run, after its first ten (default: 30)")
    arguments.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    arguments.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    given = arguments.parse_args()
    counts.check(arguments, given, steps=1)
    if given.pairs < 2:
        arguments.error("at least 2 pairs of runs tell something")
    results = []
    for name in given.cases:
        speed = {system: Case(name, system, "tokens/s") for system in SYSTEMS}
        first = {system: Case(f"{name}, first step", system, "s") for system in (*SYSTEMS, "compiled before")}
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            for pair in range(given.pairs):
                for system in sorted(SYSTEMS, reverse=bool(pair % 2)):
                    compiled = SYSTEMS[system]
                    lines = worlds.train(config(CASES[name], given.steps, compiled), RANKS)
                    again = compiled and bool(first[system].samples)
                    first["compiled before" if again else system].samples.append(lines[0]["seconds"])
                    speeds = [line["tokens"] / line["seconds"] for line in lines[WARM_UP:]]
                    speed[system].samples.append(statistics.median(speeds))
        ratios = speed["compiled"].over(speed["eager"])
        bound = f", lower 95 % bound {lower_bound(ratios):.3f}" if len(ratios) >= 10 else ""
        medians = {system: f"{case.median:.0f}" for system, case in speed.items()}
        seconds = {system: f"{case.median:.1f}" for system, case in first.items()}
        print(f"{name}: tokens/s {medians}, ratio {statistics.median(ratios):.3f}{bound}; first step, s: {seconds}")
        results += [*speed.values(), *first.values()]
    if not given.no_write:
        print(f"written to {write(name_of('compiling', given.cases, CASES), results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
