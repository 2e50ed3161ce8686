"""Runs units in interpreters that record, two at a time, and says what each of them reached."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import tied
from tests.suite.reach import startup
from tests.suite.reach.checkout import Checkout, listings
from tests.suite.reach.collection import DAILY
from tests.suite.reach.facts import SUITE
from tests.suite.reach.interpreter import Interpreter
from tests.suite.reach.probes import block_names, is_probed, keep
from tests.suite.reach.recordfile import Text, Unit, file_of

WORKERS = 2

LIMIT_S = 1200.0
"""A unit that takes longer hangs: it is ended, and is incomplete."""

ENDS = (0, 5)
"""pytest's exit codes of a unit that can be used: all tests passed, or none was left after deselection."""


@dataclass(frozen=True)
class Source:
    """What a test file consists of: itself, and files of the tests that it can import and that have no probes.

    `searches`: it looks for examples, other ones in every run. Then a module of which it executes a function counts as
    executed in full.
    """

    own: frozenset[Text]
    searches: bool = False


@dataclass(frozen=True)
class Job:
    """A unit to record: its name, words for pytest, and how many tests they mean."""

    unit: str
    words: tuple[str, ...]
    tests: int


@dataclass(frozen=True)
class Result:
    """What became of a job. `reason` says why its unit is incomplete."""

    job: Job
    unit: Unit
    seconds: float
    reason: str = ""


@dataclass
class _Running:
    job: Job
    interpreter: Interpreter
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    pidfd: int


class Recorder:
    """Knows where the map holds what, and has an interpreter for each worker."""

    def __init__(self, checkout: Checkout, folder: Path, sources: Mapping[str, Source], logs: Path) -> None:
        """`folder` holds all that is needed only now; `sources`: of each test file, what it consists of; `logs`: the
        folder for the output of units that fail.
        """
        self.checkout = checkout
        self.folder = folder
        self.sources = sources
        self.logs = logs
        files = checkout.files
        self.names = {path: block_names(checkout.text_now(path) or "") for path in files if is_probed(path)}
        self.firsts: dict[str, int] = {}
        place = startup.HELD
        for path, names in self.names.items():
            self.firsts[path] = place
            place += len(names)
        hashes = {path: found for path, found in (checkout.blobs | listings(files)).items() if not _is_ours(path)}
        self.places = {path: place + number for number, path in enumerate(hashes)}
        self.texts = {path: Text(path, found) for path, found in hashes.items()}
        self.known = frozenset(self.texts[path] for path in self.names)
        keep(checkout.root, folder / "code", self.firsts)
        self.idle = []
        for number in range(WORKERS):
            interpreter = Interpreter(folder / f"worker-{number}", place + len(self.places))
            interpreter.plan(checkout.root, folder / "code", self.places)
            self.idle.append(interpreter)

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield the result of each job as it ends. What still runs is ended when the iterator is closed."""
        left, running = list(reversed(jobs)), dict[int, _Running]()
        with selectors.DefaultSelector() as selector:
            try:
                while left or running:
                    while left and self.idle:
                        one = self._start(left.pop(), self.idle.pop())
                        running[one.pidfd] = one
                        selector.register(one.pidfd, selectors.EVENT_READ)
                    ready = {key.fd for key, _ in selector.select(timeout=1.0)}
                    for one in [*running.values()]:
                        late = time.monotonic() - one.started > LIMIT_S
                        if late:
                            one.process.kill()
                        if late or one.pidfd in ready:
                            selector.unregister(one.pidfd)
                            del running[one.pidfd]
                            yield self._finish(one)
            finally:
                for one in running.values():
                    one.process.kill()
                    one.process.wait()
                    os.close(one.pidfd)

    def _start(self, job: Job, interpreter: Interpreter) -> _Running:
        interpreter.clear()
        log = interpreter.folder / "log"
        command = [
            str(interpreter.python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *DAILY,
            *job.words,
        ]
        with open(log, "wb") as output:
            process = tied.popen(
                command, cwd=self.checkout.root, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        return _Running(job, interpreter, process, log, time.monotonic(), os.pidfd_open(process.pid))

    def _finish(self, one: _Running) -> Result:
        code = one.process.wait()
        os.close(one.pidfd)
        seconds, reached = time.monotonic() - one.started, one.interpreter.read()
        self.idle.append(one.interpreter)
        log = self.logs / f"{one.job.unit.replace('/', '.')[:150]}.log"
        log.unlink(missing_ok=True)
        reason = ""
        if code not in ENDS:
            reason = f"pytest ended with {code}"
            self.logs.mkdir(parents=True, exist_ok=True)
            log.write_bytes(one.log.read_bytes())
        elif reached[startup.CHANGED]:
            reason = "a source was changed meanwhile"
        return Result(one.job, self._unit(one.job, reached, complete=not reason), seconds, reason)

    def _unit(self, job: Job, reached: bytes, *, complete: bool) -> Unit:
        source = self.sources[file_of(job.unit)]
        blocks = {}
        for path, names in self.names.items():
            first = self.firsts[path]
            found = frozenset(number for number in range(len(names)) if reached[first + number])
            if found and source.searches and any(names[number] for number in found):
                found = frozenset(range(len(names)))
            if found:
                blocks[self.texts[path]] = found
        used = frozenset(self.texts[path] for path, place in self.places.items() if reached[place])
        return Unit(job.tests, blocks, used - source.own, source.own, self.known, complete)


def _is_ours(path: str) -> bool:
    """Tell whether a file belongs to what runs the suite: every run reads it, and no test depends on it."""
    return f"{path}/".startswith(SUITE)
