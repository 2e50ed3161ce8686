"""Tokens per second of torchtitan's smallest model under our agent, beside torchrun.

    python -m benchmarks.titan_speed --sources DIR [--pairs 24] [--steps 8] [--no-write]

DIR is as for `benchmarks.public_scripts`. Both are started at once, two ranks each, and take turns: one trains a block
of steps while the ranks of the other wait. The blocks of a pair follow each other, in alternating order, so that a
machine whose speed drifts drifts for both. Each block is measured from the end of its first step to the end of its
last one. Prints the ratio with the lower end of its one-sided 95 % interval, and exits with 1 if that is below the
goal, 0.99.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import commands, load, record
from benchmarks.markdown import machine, wrapped
from benchmarks.public_scripts import titan_script
from benchmarks.public_scripts.runs import OURS, PEER, Started
from benchmarks.public_scripts.scripts import BadSources, PublicScript, check_sources
from benchmarks.record import Case
from benchmarks.turns import lower_bound

GOAL = 0.99
NAME = "titan-speed"
TOKENS = 512  # of a step: 256 for each of two ranks
LOOK_EVERY_S = 0.05
START_S = 600.0  # that a system may take until all its ranks have trained their first block
LEAST_PAIRS, LEAST_STEPS = 10, 3


class Block(NamedTuple):
    """When the slowest rank ended the first step of a block and the last one; monotonic ns."""

    first_ns: int
    last_ns: int

    @property
    def seconds(self) -> float:
        return (self.last_ns - self.first_ns) / 1e9


def lengthened() -> PublicScript:
    """Return the script with options by which it outlasts all blocks and saves nothing."""
    words = titan_script.SCRIPT.words
    return dataclasses.replace(
        titan_script.SCRIPT,
        words=tuple("1000000" if word == "12" else word for word in words[: words.index("--checkpoint.enable")]),
    )


def take_turns(script: PublicScript, sources: Path, pairs: int, steps: int) -> dict[str, list[Block]]:
    """Return the blocks of both systems, in the order of their turns. Raises BadSources if the snapshot lacks what is
    needed, and RuntimeError if a system ends or hangs."""
    with contextlib.ExitStack() as stack:
        running = {}
        for system in (OURS, PEER):
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="titan-speed-")))
            running[system] = stack.enter_context(Started(script, sources, system, None, 0.0, root, steps))
        for started in running.values():
            _wait(started, steps)
        for pair in range(pairs):
            for system in sorted(running, reverse=bool(pair % 2)):
                running[system].release()
                _wait(running[system], steps * (pair + 2))
        return {system: _blocks(started, steps, pairs) for system, started in running.items()}


def _wait(started: Started, count: int) -> None:
    """Wait until all ranks have taken so many steps."""
    deadline = time.monotonic() + START_S
    while started.at_step(count) < started.script.ranks:
        if started.process.poll() is not None or time.monotonic() > deadline:
            started.end()
            raise RuntimeError(f"{started.system} took no {count} steps:\n{started.output()[-1500:]}")
        time.sleep(LOOK_EVERY_S)


def _blocks(started: Started, steps: int, pairs: int) -> list[Block]:
    """Return the blocks behind the first one, in which the ranks still warm up."""
    at = {(step.rank, step.count): step.at_ns for step in started.stamped()[0]}
    ranks = range(started.script.ranks)
    return [
        max(
            (Block(at[rank, steps * number + 1], at[rank, steps * (number + 1)]) for rank in ranks),
            key=lambda block: block.seconds,
        )
        for number in range(1, pairs + 1)
    ]


def section() -> Iterator[str]:
    """Yield the lines of the block `titan-speed` in docs/scripts.md."""
    if not (record.RESULTS / f"{NAME}.json").exists():
        yield "No run is committed yet; `python -m benchmarks.titan_speed` makes one."
        return
    facts, cases = record.load(NAME)
    ours, peer = (next(case for case in cases if case.system == system) for system in (OURS, PEER))
    ratios = ours.over(peer)
    yield from wrapped(
        f"torchtitan's debug model trains {ours.median:,.0f} tokens per second under Trainmaster and "
        f"{peer.median:,.0f} under torchrun (medians of {len(ratios)} blocks each, which take turns). The ratio of the "
        f"two blocks of a pair is {statistics.median(ratios):.3f} (median); its mean is at least "
        f"{lower_bound(ratios):.3f} (one-sided 95 %). {machine(facts)} Before the run, other work kept "
        f"{facts['busy_cores_before']:.1f} of its cores busy."
    )


def main(arguments: Sequence[str] | None = None, script: PublicScript | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.titan_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="folder of the snapshots")
    parser.add_argument("--pairs", type=int, default=24, help="of blocks (default: 24)")
    parser.add_argument("--steps", type=int, default=8, help="of a block (default: 8)")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    given = parser.parse_args(arguments)
    check_sources(parser, given)
    if given.pairs < LEAST_PAIRS or given.steps < LEAST_STEPS:
        parser.error(f"at least {LEAST_PAIRS} pairs of blocks of at least {LEAST_STEPS} steps tell something")
    before = load.look()
    try:
        with commands.sigterm_exits():
            found = take_turns(script or lengthened(), given.sources, given.pairs, given.steps)
    except (BadSources, RuntimeError) as error:
        sys.stderr.write(f"benchmarks.titan_speed: {error}\n")
        return 2
    tokens = TOKENS * (given.steps - 1)
    cases = [
        Case("debug model", system, "tokens/s", [tokens / block.seconds for block in found[system]])
        for system in (OURS, PEER)
    ]
    ratios = cases[0].over(cases[1])
    bound = lower_bound(ratios)
    medians = ", ".join(f"{case.system} {case.median:,.0f}" for case in cases)
    print(f"tokens/s: {medians}; ratio {statistics.median(ratios):.3f}, lower 95 % bound {bound:.3f}")
    if not given.no_write:
        print(f"written: {record.write(NAME, cases, busy_cores_before=round(before.busy, 2))}")
    return 0 if bound >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
