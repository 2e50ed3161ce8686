"""Runs the phases of CI: `python3 .ci/driver.py`. Exit code 0: all passed; 1: one failed; 2: bad arguments.

Each phase writes into a file of its own, which is printed whole when the phase ends. The first failure ends the other
phases; phases that clean up run in any case. The last lines tell how long each phase took.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO

import phases as plan
from phases import Outcome, Phase, Span

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT_S = 86 * 60.0  # whoever runs CI kills it without a word after 90 minutes
LAST_LINES = 100
# What a process group gets that must end, and how long it has before the next one: pytest takes its fixtures down when
# it is interrupted, and only then.
ENDINGS = ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
# Output is seen as it is written; compiled modules are kept, or each process would compile all of them again.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""}
_LOWEST = 19


class Driver:
    """Runs phases in `folder`, and tells about them on `out`."""

    def __init__(
        self,
        phases: Sequence[Phase],
        folder: Path,
        out: BinaryIO,
        limit_s: float = LIMIT_S,
        endings: Sequence[tuple[signal.Signals, float]] = ENDINGS,
    ) -> None:
        plan.check(phases)
        self._phases = {phase.name: phase for phase in phases}
        self._folder, self._out, self._endings = folder, out, endings
        self._began_s = time.monotonic()
        self._limit_s = limit_s
        self._events: SimpleQueue[str] = SimpleQueue()  # names of phases whose process ended; "": stop
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started_s: dict[str, float] = {}
        self._logs: dict[str, Path] = {}
        self.done: dict[str, Outcome] = {}
        self.spans: dict[str, Span] = {}

    def stop(self, *_: object) -> None:
        """End all phases but those that clean up, and fail. Safe in a signal handler and in another thread."""
        self._events.put("")

    def run(self) -> bool:
        """Run all phases and return whether all passed."""
        stopping = False
        with tempfile.TemporaryDirectory(prefix="ci-") as logs:
            while True:
                for phase in plan.startable(list(self._phases.values()), self._running, self.done, stopping):
                    self._start(phase, Path(logs))
                if not self._running:
                    break
                reason = self._wait(None if stopping else self._limit_s)
                if reason and not stopping:
                    stopping = True
                    self._say(f"{reason}: the other phases are ended")
                    self._end_others()
            self._tell_the_end()
        return not stopping and not plan.failed(self.done)

    def _start(self, phase: Phase, logs: Path) -> None:
        self._logs[phase.name] = logs / f"{phase.name}.log"
        self._say(f"{phase.name} starts: {' '.join(phase.command)}")
        self._started_s[phase.name] = self._now_s()
        with self._logs[phase.name].open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", 'exec "$0" "$@"', *phase.command],  # a program that is missing is told in the log
                cwd=self._folder,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_heed_interrupts,
            )
        if phase.background:
            _yield_processor(process.pid)
        self._running[phase.name] = process
        threading.Thread(target=self._watch, args=(phase.name, process), daemon=True).start()

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._events.put(name)

    def _wait(self, until_s: float | None) -> str:
        """Wait for the next phase to end, and return the reason to stop: "" for none."""
        try:
            name = self._next_event(until_s)
        except Empty:
            return f"CI takes longer than {self._limit_s / 60:.0f} minutes"
        if not name:
            return "CI was told to stop"
        outcome = self._finish(name, Outcome.FAILED)
        return f"{name} failed" if outcome is Outcome.FAILED else ""

    def _next_event(self, until_s: float | None) -> str:
        """Return the name of the next phase that ends, or "" to stop. Raises Empty at `until_s` since CI began."""
        return self._events.get(timeout=None if until_s is None else max(0.0, until_s - self._now_s()))

    def _now_s(self) -> float:
        """Seconds since CI began."""
        return time.monotonic() - self._began_s

    def _finish(self, name: str, otherwise: Outcome) -> Outcome:
        """Note how a phase ended (`otherwise`: unless it passed) and print its output."""
        code = self._running.pop(name).returncode
        outcome = self.done[name] = Outcome.PASSED if code == 0 else otherwise
        self.spans[name] = Span(self._started_s[name], self._now_s())
        self._say(f"output of {name}")
        self._write(self._logs[name].read_bytes())
        self._say(f"{name} {outcome.value} after {self.spans[name].took_s:.1f} s, exit code {code}")
        return outcome

    def _end_others(self) -> None:
        """End what runs, process group by process group. What cleans up runs on."""
        ending = {name: self._running[name] for name in self._running if not self._phases[name].cleanup}
        for number, patience_s in self._endings:
            for process in ending.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            until_s = self._now_s() + patience_s
            while ending:
                try:
                    name = self._next_event(until_s)
                except Empty:
                    break
                if name in ending:
                    # The first process of a group is gone; whatever it left behind goes too.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(ending.pop(name).pid, signal.SIGKILL)
                    self._finish(name, Outcome.ENDED)
                elif name:
                    self._finish(name, Outcome.FAILED)
        assert not ending, f"{', '.join(ending)} outlived SIGKILL"

    def _tell_the_end(self) -> None:
        for name, outcome in self.done.items():
            if outcome is Outcome.FAILED:
                self._say(f"the last {LAST_LINES} lines of {name}, which failed")
                self._write(b"".join(self._logs[name].read_bytes().splitlines(keepends=True)[-LAST_LINES:]))
        self._say("durations")
        closing = plan.report(list(self._phases.values()), self.done, self.spans, self._now_s())
        self._write(f"{closing}\n".encode())

    def _say(self, text: str) -> None:
        self._write(f"=== {self._now_s():7.1f} s  {text}\n".encode())

    def _write(self, data: bytes) -> None:
        try:
            self._out.write(data)
            if data and not data.endswith(b"\n"):
                self._out.write(b"\n")
            self._out.flush()
        except OSError:
            # Who reads has ended, as after Ctrl-C behind a pipe, or the terminal is closed. What runs has to be ended
            # all the same, and what cleans up has to run.
            self._out = io.BytesIO()


def _heed_interrupts() -> None:
    """Take SIGINT as a program does that a person starts: a shell's background jobs ignore it, with all below them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _yield_processor(pid: int) -> None:
    """Give a new process and its children only the processor time that others leave.

    Linux may share the processor between sessions first and look at niceness only within one: both are set.
    """
    with contextlib.suppress(OSError):  # it is gone already, or the kernel has no such groups
        os.setpriority(os.PRIO_PGRP, pid, _LOWEST)
        Path(f"/proc/{pid}/autogroup").write_text(str(_LOWEST))


def main(argv: Sequence[str] | None = None) -> int:
    """Run CI's phases and return the exit code."""
    parser = argparse.ArgumentParser(prog=".ci/run", description="Run what CI runs; it takes no arguments.")
    parser.parse_args(argv)
    driver = Driver(plan.PHASES, REPOSITORY, sys.stdout.buffer)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, driver.stop)
    return 0 if driver.run() else 1


if __name__ == "__main__":
    sys.exit(main())
