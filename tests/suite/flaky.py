"""Finds tests that fail now and then: runs a shard of the process tests several times on a busy machine.

Each round runs the tests on two workers while a busy loop runs on each core, and then, without that load, those that
need the machine alone. The log of each failure stays in runs/flaky/. The end is a table of the tests that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import tied
from tests.suite import load
from tests.suite.failure_logs import Outcome, read_outcomes
from tests.suite.plugin import shard_of

ROOT = Path(__file__).parents[2]
BAD_INPUT, INTERRUPTED = 2, 130
_RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Broken(Exception):
    """A round of which nothing can be said. The message says where pytest's output is."""


@dataclass(frozen=True)
class Part:
    """Some of a round's tests: which ones, and how they run."""

    name: str
    markers: str
    loops: int
    workers: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and print the table. Return the exit code: 1 if a test failed, 2 if no test could run."""
    args = _parser().parse_args(arguments)
    folder = args.logs / time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in (signal.SIGTERM, signal.SIGINT):  # which a shell's background job ignores, and all that it starts
        signal.signal(number, _interrupt)
    code = 0
    try:
        parts = _parts(args)
        for number in range(1, args.times + 1):
            # A part without any test isn't collected again in each round.
            parts = _run_round(number, args, parts, folder)
    except Broken as error:
        sys.stderr.write(f"{error}\n")
        code = BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; this is what was seen until now\n")
        code = INTERRUPTED
    outcomes = [outcome for path in sorted(folder.glob("*/*")) for outcome in read_outcomes(path)]
    sys.stdout.write(table(outcomes))
    return code or int(any(outcome.failed for outcome in outcomes))


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table of the tests that failed: how often, in how many runs, and where each log is."""
    runs = Counter(outcome.test for outcome in outcomes)
    logs: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.failed:
            logs[outcome.test].append(outcome.log)
    summary = f"{len(runs)} tests, {sum(runs.values())} runs, {sum(map(len, logs.values()))} failures"
    if not logs:
        return f"{summary}\n"
    lines = [f"{'failures':>12}  test"]
    for test, paths in sorted(logs.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        lines.append(f"{f'{len(paths)} of {runs[test]}':>12}  {test}")
        lines += [f"{'':12}    {path}" for path in paths]
    return "\n".join([*lines, summary]) + "\n"


def _parser() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.flaky", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", metavar="N", type=_positive, default=3, help="rounds (default: %(default)s)")
    parser.add_argument("--shard", metavar="I/N", type=_shard, default="1/1", help="the part of the tests, such as 1/4")
    parser.add_argument("--load", metavar="N", type=_count, default=cores, help="busy loops (default: %(default)s)")
    parser.add_argument("--workers", metavar="N", type=_count, default=2, help="workers (default: %(default)s)")
    parser.add_argument("--markers", default="processes", help="the tests, as for `pytest -m` (default: %(default)s)")
    parser.add_argument("--logs", metavar="FOLDER", type=Path, default=ROOT / "runs" / "flaky", help=argparse.SUPPRESS)
    parser.add_argument("paths", metavar="PATH", nargs="*", help="test files, folders or ids (default: all)")
    return parser


def _shard(text: str) -> str:
    shard_of(text)
    return text


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _parts(args: argparse.Namespace) -> list[Part]:
    return [
        Part("together", f"({args.markers}) and not alone", args.load, args.workers),
        Part("alone", f"({args.markers}) and alone", 0, 0),
    ]


def _run_round(number: int, args: argparse.Namespace, parts: Sequence[Part], folder: Path) -> list[Part]:
    """Run the parts of a round and return those that have tests. Raises Broken if none has, or pytest didn't run."""
    began = time.monotonic()
    found = {part: _run_part(part, args.shard, args.paths, folder / f"round-{number}" / part.name) for part in parts}
    outcomes = [outcome for part in parts for outcome in found[part]]
    if not outcomes:
        raise Broken(f"no test of shard {args.shard} is selected by `-m {args.markers!r}`")
    failed = sum(outcome.failed for outcome in outcomes)
    spent_s = time.monotonic() - began
    sys.stdout.write(f"round {number} of {args.times}: {len(outcomes)} tests, {failed} failed, {spent_s:.0f} s\n")
    sys.stdout.flush()
    return [part for part in parts if found[part]]


def _run_part(part: Part, shard: str, paths: Sequence[str], logs: Path) -> list[Outcome]:
    logs.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.suite.plugin", "-p", "tests.suite.failure_logs"]
    command += ["-m", part.markers, "--shard", shard, "--failure-logs", str(logs)]
    command += ["-n", str(part.workers), "--dist", "loadgroup"] if part.workers else ["-p", "no:xdist"]
    output = logs / "pytest.log"
    with load.busy(part.loops), output.open("w") as file, _pytest([*command, *paths], file) as process:
        code = process.wait()
    if code not in _RAN:
        raise Broken(f"pytest ended with exit code {code}; {output} has its output")
    return read_outcomes(logs)


@contextlib.contextmanager
def _pytest(command: Sequence[str], output: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start pytest. If the context is interrupted, pytest and its workers are too, and may end what they began."""
    process = tied.popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise


if __name__ == "__main__":
    sys.exit(main())
