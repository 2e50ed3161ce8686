"""Runs schedules: `seeds 0:1000`, `crashes`, `exhaustive`, `bugs`, `soak`, and `replay FILE`.

Whoever goes wrong is shown with its log. `soak` writes what it finds, minimised, as a file that `replay` runs.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from trainmaster_operator.runtime.simulation import bugs, exhaustive, soak
from trainmaster_operator.runtime.simulation.crashes import SCENARIOS, crash_matrix
from trainmaster_operator.runtime.simulation.minimise import minimise
from trainmaster_operator.runtime.simulation.run import Outcome, run_schedule, run_seed
from trainmaster_operator.runtime.simulation.schedule import BadSchedule, Schedule


def main() -> int:
    args = _parser().parse_args()
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(message)s")
    if args.what == "soak":
        return soak.main(args.seconds, args.schedules, args.first, args.exhaustive, args.processes, args.folder)
    if args.what == "bugs":
        return _hunt(args.most)
    started, runs, bad = time.perf_counter(), 0, 0
    try:
        for name, outcome in _chosen(args):
            runs += 1
            bad += bool(outcome.violations)
            if outcome.violations or args.log:
                _show(name, outcome)
    except BadSchedule as error:
        sys.stderr.write(f"{error}\n")
        return 2
    seconds = time.perf_counter() - started
    sys.stdout.write(f"{runs} schedules, {bad} bad, {seconds:.1f} s, {runs / seconds:.1f} schedules/s\n")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainmaster_operator.runtime.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--log", action="store_true", help="show the log of every schedule, not only of failing ones")
    parser.add_argument("--verbose", action="store_true", help="show the operator's own log")
    verbs = parser.add_subparsers(dest="what", required=True)
    seeds = verbs.add_parser("seeds", help="random schedules")
    seeds.add_argument("seeds", metavar="A:B", help="schedules A to B-1; or a single one")
    verbs.add_parser("crashes", help="kill the operator at each write of each scenario")
    small = verbs.add_parser("exhaustive", help="two faults at every event of small jobs")
    small.add_argument("--stride", type=int, default=1, help="of second faults only each so-manieth")
    hunt = verbs.add_parser("bugs", help="in how many schedules each of some bugs is found")
    hunt.add_argument("--most", type=int, default=2000, help="schedules that are tried for a bug (%(default)s)")
    long = verbs.add_parser("soak", help="as many random schedules as time allows, over all cores")
    long.add_argument("--seconds", type=float, default=0.0, help="stop after so long; 0: don't")
    long.add_argument("--schedules", type=int, default=100_000, help="stop after so many (%(default)s)")
    long.add_argument("--first", type=int, default=0, help="the first seed")
    long.add_argument("--exhaustive", action="store_true", help="every placement of two faults first")
    long.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    long.add_argument("--folder", type=Path, default=Path("runs/soak"), help="of what goes wrong (%(default)s)")
    replay = verbs.add_parser("replay", help="run a schedule from a file, and show its log")
    replay.add_argument("file", type=Path)
    reduced = verbs.add_parser("minimise", help="the smallest schedule that goes wrong as a seed does, on stdout")
    reduced.add_argument("seed", type=int)
    return parser


def _chosen(args: argparse.Namespace) -> Iterator[tuple[str, Outcome]]:
    if args.what == "seeds":
        first, colon, last = args.seeds.partition(":")
        for seed in range(int(first), int(last) if colon else int(first) + 1):
            yield f"seed {seed}", run_seed(seed)
    elif args.what == "crashes":
        for scenario in SCENARIOS:
            yield from crash_matrix(scenario)
    elif args.what == "exhaustive":
        for place in exhaustive.places():
            yield from ((schedule.name, outcome) for schedule, outcome in exhaustive.with_a_second(place, args.stride))
    elif args.what == "replay":
        args.log = True
        yield str(args.file), run_schedule(Schedule.from_json(args.file.read_text()))
    elif args.what == "minimise":
        schedule = minimise(Schedule.of_seed(args.seed), run_schedule)
        sys.stdout.write(schedule.to_json() + "\n")
        yield schedule.name, run_schedule(schedule)


def _hunt(most: int) -> int:
    missed = 0
    for bug in bugs.BUGS:
        found = bugs.find(bug, most)
        missed += not found.violation
        words = (
            f"{found.schedules:6}  {found.violation}" if found.violation else f"     -  not found in {most} schedules"
        )
        sys.stdout.write(f"{bug.name:44} {words}\n")
        sys.stdout.flush()
    return 1 if missed else 0


def _show(name: str, outcome: Outcome) -> None:
    lines = [f"--- {name}", *(f"    {fault}" for fault in outcome.faults), *outcome.log]
    lines += [f"{name}: {violation}" for violation in outcome.violations]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
