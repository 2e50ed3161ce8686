"""Schedules by the hundred thousand, over all cores: stops at a number or a time, and keeps what went wrong.

The last line tells schedules, schedules/s, hours of virtual time, state pairs and violations.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import multiprocessing.pool
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulation.schedule_runs import exhaustive
from simulation.schedule_runs.minimise import minimise
from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.simulated_run import SELDOM, Outcome, run_schedule
from simulation.virtual.invariants import State

CHUNK = 50  # schedules
TELL_EVERY_S = 30.0
KEPT = 10
"""Bad schedules that are minimised and written; of more, only the number is told."""

Work = tuple[int, int] | exhaustive.Place  # seeds from, to; or all that begins with one fault


@dataclass
class Done:
    """What came out of a chunk of schedules."""

    schedules: int = 0
    placed: int = 0  # of these: placements of faults in small jobs
    seconds: float = 0.0  # virtual
    pairs: set[tuple[State, State]] = field(default_factory=set)
    bad: list[Schedule] = field(default_factory=list)

    def add(self, other: Done) -> None:
        self.schedules += other.schedules
        self.placed += other.placed
        self.seconds += other.seconds
        self.pairs |= other.pairs
        self.bad += other.bad


def soak(
    *,
    seconds: float,
    schedules: int,
    first: int = 0,
    exhaustively: bool = False,
    processes: int,
    folder: Path,
    tell: Callable[[str], None],
) -> Done:
    """`seconds`: after which no further chunk is started; 0: no limit. Bad schedules are written to `folder`."""
    started = time.perf_counter()
    total = Done()
    told_at, told_pairs = started, 0

    def work() -> Iterator[Work]:
        if exhaustively:
            yield from exhaustive.places()
        for at in range(first, first + schedules, CHUNK):
            yield at, min(at + CHUNK, first + schedules)

    def within_time() -> Iterator[Work]:
        for item in work():
            if seconds and time.perf_counter() - started >= seconds:
                return
            yield item

    with multiprocessing.get_context("fork").Pool(processes, _calm) as pool:
        # No more chunks than processes wait at any time, so that the end is near when the time is over.
        under_way: list[multiprocessing.pool.AsyncResult[Done]] = []
        for item in within_time():
            under_way.append(pool.apply_async(_run, (item,)))
            while len(under_way) > processes:
                total.add(under_way.pop(0).get())
            now = time.perf_counter()
            if now - told_at >= TELL_EVERY_S:
                tell(f"{_line(total, now - started)} (+{len(total.pairs) - told_pairs} state pairs)")
                told_at, told_pairs = now, len(total.pairs)
        for result in under_way:
            total.add(result.get())
    elapsed = time.perf_counter() - started
    for schedule in total.bad[:KEPT]:
        _keep(schedule, folder, tell)
    if total.placed:
        tell(f"{total.placed} placements of up to two faults in {len(exhaustive.SCOPES)} small jobs")
    tell(_line(total, elapsed))
    return total


def _line(done: Done, elapsed: float) -> str:
    return (
        f"{done.schedules} schedules, {done.schedules / max(elapsed, 1e-9):.1f} schedules/s, "
        f"{done.seconds / 3600:.1f} hours of virtual time, {len(done.pairs)} state pairs, {len(done.bad)} violations"
    )


def _calm() -> None:
    """A worker: what is there now stays, and what a schedule leaves behind is collected now and then."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of the process that forked it would keep it from ending
    gc.freeze()
    gc.set_threshold(*SELDOM)


def _run(work: Work) -> Done:
    done = Done()
    for schedule, outcome in _outcomes(work):
        done.schedules += 1
        done.placed += isinstance(work, exhaustive.Place)
        done.seconds += outcome.seconds
        done.pairs.update(outcome.pairs)
        if outcome.violations:
            done.bad.append(schedule)
    return done


def _outcomes(work: Work) -> Iterator[tuple[Schedule, Outcome]]:
    if isinstance(work, exhaustive.Place):
        yield from exhaustive.with_a_second(work)
        return
    first, last = work
    for seed in range(first, last):
        schedule = Schedule.of_seed(seed)
        yield schedule, run_schedule(schedule)


def _keep(schedule: Schedule, folder: Path, tell: Callable[[str], None]) -> None:
    small = minimise(schedule, run_schedule)
    violations = run_schedule(small).violations
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^a-z0-9]+", "-", schedule.name) + ".json")
    path.write_text(small.to_json(violations=violations))
    words = violations[0] if violations else "it went wrong in a process of the soak, and breaks no promise here"
    tell(f"{schedule.name}: {words}")
    tell(f"    python -m simulation replay {path}")


def main(seconds: float, schedules: int, first: int, exhaustively: bool, processes: int, folder: Path) -> int:
    def tell(words: str) -> None:
        sys.stdout.write(words + "\n")
        sys.stdout.flush()

    done = soak(
        seconds=seconds,
        schedules=schedules,
        first=first,
        exhaustively=exhaustively,
        processes=processes,
        folder=folder,
        tell=tell,
    )
    return 1 if done.bad else 0
