"""`python -m trainmaster_operator.runtime.simulation --seeds 0:1000` and `--crash-matrix`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator

from trainmaster_operator.runtime.simulation.crashes import SCENARIOS, crash_matrix
from trainmaster_operator.runtime.simulation.run import Outcome, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainmaster_operator.runtime.simulation", description=__doc__)
    parser.add_argument("--seeds", default="", metavar="A:B", help="random schedules A to B-1; or a single one")
    parser.add_argument("--crash-matrix", action="store_true", help="kill the operator at each write of each scenario")
    parser.add_argument("--log", action="store_true", help="show the log of every schedule, not only of failing ones")
    parser.add_argument("--verbose", action="store_true", help="show the operator's own log")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(message)s")
    started, runs, bad = time.perf_counter(), 0, 0
    for name, outcome in _all(args.seeds, args.crash_matrix):
        runs += 1
        bad += bool(outcome.violations)
        if outcome.violations or args.log:
            _show(name, outcome)
    seconds = time.perf_counter() - started
    sys.stdout.write(f"{runs} schedules, {bad} bad, {seconds:.1f} s, {runs / seconds:.1f} schedules/s\n")
    return 1 if bad else 0


def _all(seeds: str, matrix: bool) -> Iterator[tuple[str, Outcome]]:
    if seeds:
        first, colon, last = seeds.partition(":")
        for seed in range(int(first), int(last) if colon else int(first) + 1):
            yield f"seed {seed}", run_seed(seed)
    if matrix:
        for scenario in SCENARIOS:
            yield from crash_matrix(scenario)


def _show(name: str, outcome: Outcome) -> None:
    lines = [f"--- {name}", *(f"    {fault}" for fault in outcome.faults), *outcome.log]
    lines += [f"{name}: {violation}" for violation in outcome.violations]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
