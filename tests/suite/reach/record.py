"""Record what each test executes: `python -m tests.suite.reach.record`, which takes longer than all tests do.

Every unit runs in a pytest process of its own, so that what it imports and what its session's fixtures do count for it.
Test files are units. In files whose tests start processes and take long, each of these tests is a unit too. What the
record already knows and what is still true isn't recorded again, so a recording that was stopped goes on where it was.
A unit that fails is told and marked as incomplete: of it the import graph decides.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from tests.suite.durations import COMMITTED, BadDurations, load
from tests.suite.reach import collection, recordfile
from tests.suite.reach.checkout import Checkout, GitError, texts_of
from tests.suite.reach.choice import choose
from tests.suite.reach.collection import Test
from tests.suite.reach.facts import SUITE
from tests.suite.reach.graph import CONFTEST, Graph
from tests.suite.reach.probes import is_probed
from tests.suite.reach.recorder import Job, Recorder, Result, Source
from tests.suite.reach.recordfile import BadRecord, Record, Unit, file_of
from tests.suite.reach.sight import gather

LONG_S = 2.0
"""From here on a test that starts processes is recorded by itself: it is worth more to leave out than to record."""

SEARCH = "hypothesis"
"""Who imports this tries other examples in every run."""

SAVED_EVERY_S = 60.0

LOGS = Path("runs", "reach")
"""Where the output of failed units is kept, relative to the repository."""


def plan(tests: Sequence[Test], seconds: Mapping[str, float]) -> list[Job]:
    """Return the units of the collected tests. `seconds`: how long tests take, by id, as far as that is known."""
    of_file: dict[str, list[Test]] = {}
    for test in tests:
        of_file.setdefault(file_of(test.id), []).append(test)
    jobs = []
    for file, held in of_file.items():
        alone = [
            test.id
            for test in held
            if test.starts_processes and not test.shares_fixture and seconds.get(test.id, 0.0) >= LONG_S
        ]
        jobs.append(Job(file, (file, *(f"--deselect={test}" for test in alone)), len(held) - len(alone)))
        jobs += [Job(test, (test,), 1) for test in alone]
    return jobs


def read_sources(graph: Graph, blobs: Mapping[str, str]) -> dict[str, Source]:
    """Return what each test file consists of."""
    found = {}
    for file in graph.tests:
        reach = {file, *graph.conftests(file), *graph.closure(file)}
        own = {path for path in reach if path.startswith("tests/") and not is_probed(path)}
        if not file.startswith(SUITE):
            own = {path for path in own if not path.startswith(SUITE)}
        using = (p for p in reach if p.startswith("tests/") and PurePosixPath(p).name != CONFTEST)
        searches = any(_is_search(imported.module) for path in using for imported in graph.facts[path].imports)
        found[file] = Source(texts_of(own, blobs), searches)
    return found


def _is_search(module: str) -> bool:
    return module.partition(".")[0] == SEARCH


def missed_by(graph: Graph, name: str, unit: Unit, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a unit executed though the import graph says that it can't, as `path: function`.

    `names`: of each path, the function that holds each block. Where the graph errs, it can't stand in for the record.
    """
    found = set()
    for text, blocks in unit.reached.items():
        for function in {names[text.path][number] for number in blocks}:
            if not graph.reaches(file_of(name), text.path, [function]):
                found.add(f"{text.path}: {function or 'module level'}")
    return sorted(found)


def select(
    jobs: Sequence[Job], record: Record, stale: frozenset[str], patterns: Sequence[str], every: bool
) -> list[Job]:
    """Return the jobs to do: what isn't known or isn't true any more; with patterns, what matches one of them."""
    if patterns:
        return [job for job in jobs if any(p in job.unit or fnmatchcase(job.unit, p) for p in patterns)]
    return [job for job in jobs if every or job.unit not in record.units or job.unit in stale]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, and write the record. Return 1 if a unit failed, 2 for bad input, 130 if it was interrupted."""
    options = _parser().parse_args(arguments)
    checkout = Checkout()
    try:
        sight = gather(checkout, None, options.record)
        known = load(COMMITTED)
    except (BadRecord, BadDurations, GitError) as error:
        print(error, file=sys.stderr)
        return 2
    with TemporaryDirectory(prefix="reach-") as name:
        folder = Path(name)
        try:
            tests = collect(checkout.root, folder)
        except subprocess.CalledProcessError as error:
            print(f"pytest can't collect the tests; it says:\n{error.output}", file=sys.stderr)
            return 2
        jobs = plan(tests, known.tests)
        record = sight.record.only(job.unit for job in jobs)
        wanted = select(jobs, record, choose(replace(sight, record=record)).stale, options.only, options.all)
        if options.only and not wanted:
            print(f"no test matches {' or '.join(map(repr, options.only))}", file=sys.stderr)
            return 2
        print(f"{len(wanted)} of {len(jobs)} units are to be recorded.", flush=True)
        recorder = Recorder(checkout, folder, read_sources(sight.graph, sight.blobs_now), checkout.root / LOGS)
        seconds = {job.unit: known.tests.get(job.unit, 0.0) for job in wanted}
        wanted.sort(key=lambda job: -seconds[job.unit])
        return _record(recorder, sight.graph, wanted, record, options.record)


def _record(recorder: Recorder, graph: Graph, jobs: Sequence[Job], record: Record, target: Path) -> int:
    incomplete, missed, saved = 0, dict[str, list[str]](), time.monotonic()
    try:
        for done, result in enumerate(recorder.run(jobs), 1):
            name, unit = result.job.unit, result.unit
            record = record.with_units({name: unit})
            print(f"{done:4}/{len(jobs)} {result.seconds:6.1f} s  {_told(result)}", flush=True)
            incomplete += not unit.complete
            if not recorder.sources[file_of(name)].searches and (
                missing := missed_by(graph, name, unit, recorder.names)
            ):
                missed[name] = missing
            if time.monotonic() - saved > SAVED_EVERY_S:
                recordfile.save(record, target)
                saved = time.monotonic()
    except KeyboardInterrupt:
        print("Interrupted: what was recorded is kept, and the next recording goes on from here.", file=sys.stderr)
        return 130
    finally:
        recordfile.save(record, target)
        print(f"{target}: {len(record.units)} units, {target.stat().st_size / 1024:.0f} KiB")
    for name, missing in missed.items():
        print(f"The import graph doesn't know that {name} reaches {', '.join(missing[:3])} ({len(missing)} in all).")
    if incomplete:
        print(f"{incomplete} units are incomplete; {LOGS}/ has the output of those that failed", file=sys.stderr)
    return 1 if incomplete else 0


def _told(result: Result) -> str:
    reached = sum(map(len, result.unit.reached.values()))
    said = f"{result.job.unit}: {reached} blocks of {len(result.unit.reached)} files"
    return said if result.unit.complete else f"{said}, INCOMPLETE: {result.reason}"


def collect(root: Path, folder: Path) -> list[Test]:
    """Return the tests that a change may choose, from a run of pytest that only collects. Raises CalledProcessError."""
    target = folder / "tests.json"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "tests.suite.reach.collection"]
    command += ["-p", "no:cacheprovider", "--reach-collect", str(target), *collection.DAILY]
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return collection.read(target)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.reach.record",
        description="Record which blocks of the code each test executes. Without arguments only what is missing or "
        "out of date is recorded. Nothing else should change the checkout meanwhile.",
    )
    parser.add_argument("--all", action="store_true", help="record everything again")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="record the units whose name contains this or matches it, whatever is known of them (may be repeated)",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        default=recordfile.COMMITTED,
        help="the record to renew (default: the committed one)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
