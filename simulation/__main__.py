"""Runs schedules: `seeds 0:1000`, `crashes`, `exhaustive`, `bugs`, `soak`, `replay FILE` and `minimise SEED`.

Schedules that go wrong are shown with their logs. `soak` writes what it finds, minimised, as a file that `replay` runs;
`minimise` writes such a file to standard output, and all else to standard error.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from simulation.schedule_runs import bug_search, exhaustive, seeded_bugs, soak
from simulation.schedule_runs.crash_matrix import SCENARIOS, crash_matrix
from simulation.schedule_runs.minimise import minimise
from simulation.schedule_runs.schedule import BadSchedule, Schedule
from simulation.schedule_runs.simulated_run import Outcome, run_growing_seed, run_schedule, run_seed
from trainmaster.tools import closed_stdout


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(message)s")
    try:
        if args.what == "soak":
            return soak.main(args.seconds, args.schedules, args.first, args.exhaustive, args.processes, args.folder)
        return _hunt(args.most) if args.what == "bugs" else _run(args)
    except BadSchedule as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except BrokenPipeError:
        return closed_stdout.closed()


def _run(args: argparse.Namespace) -> int:
    """Runs what is asked for, one after the other. 1 when one broke a promise. Raises BadSchedule."""
    started, runs, bad = time.perf_counter(), 0, 0
    stream = sys.stderr if args.what == "minimise" else sys.stdout
    for name, outcome in _chosen(args):
        runs += 1
        bad += bool(outcome.violations)
        if outcome.violations or args.log or args.what == "replay":
            _show(name, outcome, stream)
    seconds = time.perf_counter() - started
    stream.write(f"{runs} schedules, {bad} bad, {seconds:.1f} s, {runs / seconds:.1f} schedules/s\n")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--verbose", action="store_true", help="show the operator's own log")
    logged = argparse.ArgumentParser(add_help=False, parents=[common])
    logged.add_argument("--log", action="store_true", help="show the log of every schedule, not only of failing ones")
    verbs = parser.add_subparsers(dest="what", required=True)

    def verb(name: str, words: str, shared: argparse.ArgumentParser = logged) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=words, description=words.capitalize() + ".", parents=[shared])

    seeds = verb("seeds", "run random schedules")
    seeds.add_argument("seeds", metavar="A:B", type=_seeds, help="schedules A to B-1; or a single one")
    growing = verb("growing", "run random schedules on clusters whose nodes come late")
    growing.add_argument("seeds", metavar="A:B", type=_seeds, help="schedules A to B-1; or a single one")
    verb("crashes", "kill the operator at each write of each scenario")
    small = verb("exhaustive", "place two faults at every event of small jobs")
    small.add_argument("--stride", type=_positive, default=1, metavar="N", help="every Nth second fault (%(default)s)")
    hunt = verb("bugs", "find out in how many schedules each of some bugs shows", common)
    hunt.add_argument("--most", type=_positive, default=2000, help="schedules that are tried for a bug (%(default)s)")
    long = verb("soak", "run as many random schedules as time allows, over all cores", common)
    long.add_argument("--seconds", type=float, default=0.0, help="stop after so long; 0: don't")
    long.add_argument("--schedules", type=int, default=100_000, help="stop after so many (%(default)s)")
    long.add_argument("--first", type=int, default=0, help="the first seed")
    long.add_argument("--exhaustive", action="store_true", help="every placement of two faults first")
    long.add_argument("--processes", type=_positive, default=os.cpu_count() or 1)
    long.add_argument("--folder", type=Path, default=Path("runs/soak"), help="of what goes wrong (%(default)s)")
    replay = verb("replay", "run a schedule from a file, and show its log")
    replay.add_argument("file", type=Path)
    reduced = verb("minimise", "write the smallest schedule that goes wrong as a seed does to standard output")
    reduced.add_argument("seed", type=int)
    return parser


def _seeds(text: str) -> range:
    """The seeds of A:B, or the single one of A. Raises ValueError; ArgumentTypeError if there is none."""
    first, colon, last = text.partition(":")
    seeds = range(int(first), int(last) if colon else int(first) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"invalid seeds {text}: no schedule lies between them; B must be above A")
    return seeds


def _positive(text: str) -> int:
    """Raises ValueError; ArgumentTypeError for a number below 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"invalid number {text}: at least 1 is expected")
    return number


def _read(file: Path) -> Schedule:
    """Raises BadSchedule for a file that holds none, or that can't be read."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it holds no text"
        raise BadSchedule(f"{file}: can't be read: {why}; a file that soak or minimise wrote is expected") from None
    try:
        return Schedule.from_json(text)
    except BadSchedule as error:
        raise BadSchedule(f"{file}: {error}") from None


def _chosen(args: argparse.Namespace) -> Iterator[tuple[str, Outcome]]:
    if args.what == "seeds":
        for seed in args.seeds:
            yield f"seed {seed}", run_seed(seed)
    elif args.what == "growing":
        for seed in args.seeds:
            yield f"growing seed {seed}", run_growing_seed(seed)
    elif args.what == "crashes":
        for scenario in SCENARIOS:
            yield from crash_matrix(scenario)
    elif args.what == "exhaustive":
        for place in exhaustive.places():
            yield from ((schedule.name, outcome) for schedule, outcome in exhaustive.with_a_second(place, args.stride))
    elif args.what == "replay":
        yield str(args.file), run_schedule(_read(args.file))
    elif args.what == "minimise":
        schedule = minimise(Schedule.of_seed(args.seed), run_schedule)
        outcome = run_schedule(schedule)
        if not outcome.violations:
            sys.stderr.write(f"{schedule.name} breaks no promise, so its schedule is written as it is\n")
        sys.stdout.write(schedule.to_json() + "\n")
        yield schedule.name, outcome


def _hunt(most: int) -> int:
    missed = 0
    for bug in seeded_bugs.BUGS:
        found = bug_search.find(bug, most)
        missed += not found.violation
        words = (
            f"{found.schedules:6}  {found.violation}" if found.violation else f"     -  not found in {most} schedules"
        )
        sys.stdout.write(f"{bug.name:44} {words}\n")
        sys.stdout.flush()
    return 1 if missed else 0


def _show(name: str, outcome: Outcome, stream: TextIO) -> None:
    lines = [f"--- {name}", *(f"    {fault}" for fault in outcome.faults), *outcome.log]
    lines += [f"{name}: {violation}" for violation in outcome.violations]
    stream.write("\n".join(lines) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
