"""Goodput under faults: N steps of one script under Trainmaster, under torchrun, and under a plain shell loop.

    python -m benchmarks.goodput [--steps 300] [--rates 400 200 100] [--seeds 3] [--seconds 300]

All systems meet the same faults (a rank killed, a rank frozen, the pod killed), drawn from a rate and a seed; each
saves as often as Young's formula says for what a save and a step take under it. docs/goodput.md is the protocol. Each
run is added to the file of results once it is over, and a run that is there already is not made again: so the benchmark
can be stopped, and goes on where it was. `--script` takes a script of one's own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import commands, goodput_account, goodput_runners, load, record
from benchmarks.goodput_account import Line, Strike
from benchmarks.goodput_faults import POD_KILLED, RANK_KILLED, Fault, draw, young_steps
from benchmarks.goodput_runners import Runner, Work

RESULTS = record.RESULTS / "goodput.jsonl"
SCRIPT = Path(__file__).with_name("goodput_script.py")
CALM = 0.0  # the rate of a run without faults
CALM_EVERY = 20  # steps between the saves of such a run, which tells what they take
LOOK_S = 0.005
_TERMINATES = 1 << (signal.SIGTERM - 1)


@dataclass(frozen=True)
class Cell:
    """One run. The same cell is run once only."""

    system: str
    mean_steps: float  # between two faults; 0: none
    seed: int
    steps: int
    ranks: int
    script: str

    def is_of(self, result: dict[str, Any]) -> bool:
        return all(result[name] == value for name, value in asdict(self).items())


@dataclass
class Watched:
    """What was seen of a run."""

    began_s: float
    ended_s: float = 0.0
    lines: list[Line] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)


def cells(systems: list[str], rates: list[float], seeds: int, steps: int, ranks: int, script: str) -> list[Cell]:
    """Return all runs in their order: calm ones first, then the systems in turn, another one first each time."""
    found = [Cell(system, CALM, 0, steps, ranks, script) for system in systems]
    for number, (seed, rate) in enumerate(itertools.product(range(1, seeds + 1), rates)):
        turn = number % len(systems)
        found += [Cell(system, rate, seed, steps, ranks, script) for system in systems[turn:] + systems[:turn]]
    return found


def watch(runner: Runner, work: Work, faults: list[Fault], limit_s: float) -> Watched:
    """Run a job to its end, and strike it with these faults. Raises SystemExit if it fails, or takes too long."""
    seen, waiting, frozen = Watched(time.monotonic()), [*faults], set[int]()
    struck = -1  # the attempt that was struck last
    tail = Tail(work.folder / "steps-0")
    runner.start(work)
    try:
        while (code := runner.ended()) is None:
            seen.lines += tail.read()
            newest = next((line for line in reversed(seen.lines) if line.what == "step"), None)
            if waiting and newest is not None and newest.attempt != struck and newest.step >= waiting[0].step:
                fault, struck = waiting.pop(0), newest.attempt
                seen.strikes.append(Strike(time.monotonic(), fault.kind))
                _strike(runner, work.folder, fault, frozen)
            _thaw(frozen)
            if time.monotonic() > seen.began_s + limit_s:
                raise SystemExit(_said(work, f"{runner.name}: not over after {limit_s:g} s"))
            time.sleep(LOOK_S)
        seen.ended_s = time.monotonic()
    finally:
        runner.stop()
    seen.lines += tail.read()
    if code:
        raise SystemExit(_said(work, f"{runner.name}: the job ended with {code}"))
    return seen


class Tail:
    """The lines of a file that grows, which may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> list[Line]:
        """Return the lines that have come since the last time."""
        if not self._path.exists():
            return []
        with self._path.open() as file:
            file.seek(self._at)
            text = file.read()
        text = text[: text.rfind("\n") + 1]
        self._at += len(text)
        return goodput_account.parse(text)


def _strike(runner: Runner, folder: Path, fault: Fault, frozen: set[int]) -> None:
    if fault.kind == POD_KILLED:
        runner.kill_pod()
        return
    pid = int((folder / f"pid-{fault.rank}").read_text())
    with contextlib.suppress(ProcessLookupError):  # the job is just ending
        os.kill(pid, signal.SIGKILL if fault.kind == RANK_KILLED else signal.SIGSTOP)
        if fault.kind != RANK_KILLED:
            frozen.add(pid)


def _thaw(frozen: set[int]) -> None:
    """Let stopped ranks go that somebody has told to end: a rank that hangs in a lock would end by SIGTERM, too."""
    for pid in [*frozen]:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            pending = [
                int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("ShdPnd", "SigPnd"))
            ]
            if any(mask & _TERMINATES for mask in pending):
                os.kill(pid, signal.SIGCONT)
                frozen.discard(pid)
        except (FileNotFoundError, ProcessLookupError):
            frozen.discard(pid)


def _said(work: Work, why: str) -> str:
    output = work.folder / "output"
    return f"{output.read_text(errors='replace')[-3000:] if output.exists() else ''}\ngoodput: {why}, see above"


def measure(cell: Cell, calm: dict[str, Any] | None, limit_s: float, runner: Runner | None = None) -> dict[str, Any]:
    """Run a cell; return its line of the results. `calm`: that of its system without faults."""
    faults = draw(cell.mean_steps, cell.seed, cell.steps, cell.ranks)
    every = CALM_EVERY
    if calm is not None:
        every = young_steps(calm["save_s"], calm["step_s"], cell.mean_steps)
    before = load.look()
    with tempfile.TemporaryDirectory(prefix="bench-goodput-") as name:
        folder = Path(name)
        words = [*shlex.split(cell.script), "--folder", name, "--steps", str(cell.steps), "--every", str(every)]
        work = Work((str((record.RESULTS.parents[1] / words[0]).resolve()), *words[1:]), cell.ranks, folder)
        seen = watch(runner or goodput_runners.make(cell.system), work, faults, limit_s)
    account = goodput_account.account(seen.began_s, seen.ended_s, seen.lines, seen.strikes)
    return {
        **asdict(cell),
        "every": every,
        **_rounded(asdict(account)),
        "goodput": round(account.goodput, 4),
        "step_s": round(goodput_account.step_seconds(seen.lines), 5),
        "save_s": round(goodput_account.save_seconds(seen.lines), 5),
        "faults": [[fault.step, fault.kind, fault.rank] for fault in faults],
        "struck": len(seen.strikes),
        "losses": goodput_account.losses_digest(seen.lines),
        "last_loss": next(line.value for line in reversed(seen.lines) if line.what == "step"),
        "digest": next((line.value for line in reversed(seen.lines) if line.what == "end"), ""),
        "busy_cores_before": round(before.busy, 3),
        "stolen_cores_before": round(before.stolen, 3),
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def unlike(results: list[dict[str, Any]]) -> list[str]:
    """Return, in words, which runs of the same script and steps ended with other losses or another state."""
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    found = []
    for result in results:
        known = first.setdefault((result["script"], result["steps"], result["ranks"]), result)
        if (result["losses"], result["digest"]) != (known["losses"], known["digest"]):
            found.append(
                f"{result['system']}, {result['mean_steps']:g} steps between faults, seed {result['seed']}: the losses "
                f"are not those of {known['system']} without faults"
            )
    return found


def read(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.goodput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=2, help="in one pod (default: %(default)s)")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[400.0, 200.0, 100.0], help="steps between two faults"
    )
    parser.add_argument("--seeds", type=int, default=3, help="of each rate (default: %(default)s)")
    parser.add_argument("--systems", nargs="+", choices=goodput_runners.NAMES, default=[*goodput_runners.NAMES])
    parser.add_argument("--script", default=str(SCRIPT.relative_to(record.RESULTS.parents[1])), help="and its words")
    parser.add_argument("--results", type=Path, default=RESULTS, help="runs that are there already are not made again")
    parser.add_argument("--seconds", type=float, default=86400.0, help="begin no further run after so many")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one run may take")
    given = parser.parse_args(arguments)
    for name in ("steps", "ranks", "seeds"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} {getattr(given, name)}: at least 1 is needed")
    if given.steps <= CALM_EVERY:
        parser.error(f"--steps {given.steps}: more than {CALM_EVERY} are needed, so that a run without faults saves")
    if min(given.rates) < 1:
        parser.error(f"--rates {min(given.rates):g}: at least 1 step has to lie between two faults")
    return given


def main(arguments: list[str] | None = None) -> int:
    given = read(arguments)
    deadline = time.monotonic() + given.seconds
    wanted = cells(given.systems, given.rates, given.seeds, given.steps, given.ranks, given.script)
    for cell in wanted:
        results = record.read_rows(given.results)
        if any(cell.is_of(result) for result in results):
            continue
        if time.monotonic() > deadline:
            print("not over yet: the same command goes on", flush=True)
            break
        calm = None
        if cell.mean_steps:
            key = Cell(cell.system, CALM, 0, cell.steps, cell.ranks, cell.script)
            calm = next(result for result in results if key.is_of(result))
        with commands.sigterm_exits():
            result = measure(cell, calm, given.limit)
        record.append_row(given.results, result)
        print(
            f"{cell.system:12} {cell.mean_steps:6g} steps between faults, seed {cell.seed}: {result['struck']} faults, "
            f"{result['wall_s']:.1f} s, goodput {result['goodput']:.3f}, {result['repeated_steps']} steps repeated",
            flush=True,
        )
    problems = unlike(record.read_rows(given.results))
    for problem in problems:
        print(f"not the same: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
