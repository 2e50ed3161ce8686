"""What the operator costs beside another checkout's: CPU time for a recovery and for a pod, and the recovery's time.

    python -m benchmarks.operator_cost --beside NAME=FOLDER [--runs 6] [--kills 10] [--ranks 4] [--pods 24] [--no-write]

Both checkouts run the same local jobs with the same interpreter, in turn. The operator of a local run is a process of
its own, whose CPU time the kernel counts in nanoseconds. For a recovery it is counted from the death of a rank until
AFTER_S after the first step that all ranks have completed, when the status has been written. For a pod it is the
difference between a job of `--pods` pods and one of `--ranks`, up to their first step, over the difference of sizes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks import commands, recovery_stamps
from benchmarks.record import Case, write
from benchmarks.recovery import SCRIPTS

OURS = "this checkout"
OPERATORS = (b"trainmaster_operator.local.local_operator", b"trainmaster_operator.runtime.local")
"""The operator's module, and its name in checkouts from before it moved."""
LOOK_S = 0.01
AFTER_S = 1.0
SETTLE_S = (4.0, 2.0)  # before the first kill of a run, and before later ones
DRAWS = 2000  # of the bootstrap


Runs = Sequence[Sequence[float]]
"""The samples of each run."""


class Run(NamedTuple):
    """What one run showed: seconds and CPU milliseconds of each recovery, and CPU milliseconds up to the first step."""

    seconds: list[float]
    recovery_ms: list[float]
    start_ms: float


class Clock:
    """The CPU time of a process at any moment between two looks, by straight lines between them."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.spent_ns: list[int] = []

    def look(self, pid: int) -> None:
        """Note what all threads of the process have spent. A process that has ended spends no more."""
        try:
            tasks = [*Path(f"/proc/{pid}/task").iterdir()]
            spent = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
        except (FileNotFoundError, ProcessLookupError):
            return
        self.at_ns.append(time.monotonic_ns())
        self.spent_ns.append(spent)

    def spent(self, from_ns: int, to_ns: int) -> float:
        """Return the milliseconds of CPU time between two moments."""
        return (self._at(to_ns) - self._at(from_ns)) / 1e6

    def _at(self, moment_ns: int) -> float:
        after = bisect_left(self.at_ns, moment_ns)
        if after == 0:
            return float(self.spent_ns[0])
        if after == len(self.at_ns):
            return float(self.spent_ns[-1])
        (t0, t1), (s0, s1) = self.at_ns[after - 1 : after + 1], self.spent_ns[after - 1 : after + 1]
        return s0 + (s1 - s0) * (moment_ns - t0) / (t1 - t0)


def operator_of(command: int) -> int | None:
    """Return the pid of the operator that a command with this pid has started; None: not yet."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == command and any(name in (folder / "cmdline").read_bytes() for name in OPERATORS):
                return int(folder.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return None


@contextmanager
def watched(command: int) -> Iterator[Clock]:
    """Look at the operator of a command every LOOK_S."""
    clock, over = Clock(), threading.Event()

    def watch() -> None:
        pid = None
        while not over.wait(LOOK_S):
            pid = pid or operator_of(command)
            if pid:
                clock.look(pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield clock
    finally:
        over.set()
        thread.join()


def measure(folder: str, ranks: int, kills: int) -> Run:
    """Run the light script of the recovery benchmark under `trainmaster run` of a checkout ("": this one).

    Raises RuntimeError, with the end of what the command said, if it fails.
    """
    log = Path(tempfile.mkdtemp(prefix="bench-operator-"))
    words = [str(SCRIPTS["light"]), "--folder", str(log), "--kills", str(kills), "--settle", *map(str, SETTLE_S)]
    container = {"name": "worker", "command": ["python", *words]}
    job = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "cost"},
        "spec": {
            "framework": "PyTorch",
            "workers": {"replicas": ranks, "template": {"spec": {"containers": [container]}}},
            "recovery": {"budget": {"inPlace": 1000, "perCause": 1000}},
        },
    }
    (log / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(log / "job.yaml"), "--plain"]
    paths = {"PYTHONPATH": f"{folder}/operator:{folder}/trainer"} if folder else {}
    try:
        process = commands.popen([*command, "--out", str(log / "out")], paths, log / "output")
        with watched(process.pid) as clock:
            code = commands.wait(process, 120 + 5 * ranks + kills * (10 + ranks))
        if code != 0:
            raise RuntimeError(f"exit code {code}: {(log / 'output').read_text()[-2000:]}")
        stamps = recovery_stamps.read(log, ranks)
    finally:
        shutil.rmtree(log)
    seconds = recovery_stamps.times(stamps, ranks, kills)
    deaths = [stamp.at_ns for stamp in stamps if stamp.event == "death"]
    spans = [(death, death + int((took + AFTER_S) * 1e9)) for death, took in zip(sorted(deaths), seconds, strict=True)]
    first = max(stamp.at_ns for stamp in stamps if stamp.attempt == 0 and stamp.event == "first")
    return Run(seconds, [clock.spent(*span) for span in spans], clock.spent(0, first) + clock.spent_ns[0] / 1e6)


def ratio(above: Runs, below: Runs, seed: int = 0) -> tuple[float, float, float]:
    """Return the ratio of two medians, and the ends of its 95 % interval by the bootstrap (Efron 1979).

    Runs are drawn, and then samples of each: those of one run are more alike than those of two (Davison and Hinkley
    1997, 3.8).
    """
    chance = random.Random(seed)

    def draw(runs: Runs) -> float:
        found = chance.choices(runs, k=len(runs))
        return statistics.median([sample for run in found for sample in chance.choices(run, k=len(run))])

    drawn = sorted(draw(above) / draw(below) for _ in range(DRAWS))
    ends = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]
    return (statistics.median(_flat(above)) / statistics.median(_flat(below)), *ends)


def _flat(runs: Runs) -> list[float]:
    return [sample for run in runs for sample in run]


def split(samples: Sequence[float], runs: int) -> Runs:
    """Return the samples of each run, from those of all runs in their order: each run has as many."""
    each = len(samples) // runs
    return [samples[start : start + each] for start in range(0, len(samples), each)]


def measured(systems: dict[str, str], given: argparse.Namespace) -> list[Case]:
    """Run all checkouts in turn, the order turned round each time; return the samples of each."""
    cases = {
        (case, system): Case(case, system, unit)
        for case, unit in (("recovery", "s"), ("recovery, operator", "CPU ms"), ("a pod, operator", "CPU ms"))
        for system in systems
    }
    for number in range(given.runs):
        order = [*systems] if number % 2 == 0 else [*systems][::-1]
        for system in order:
            run = measure(systems[system], given.ranks, given.kills)
            many = measure(systems[system], given.pods, 0)
            cases["recovery", system].samples += run.seconds
            cases["recovery, operator", system].samples += run.recovery_ms
            each = (many.start_ms - run.start_ms) / (given.pods - given.ranks)
            cases["a pod, operator", system].samples.append(each)
            told = " ".join(f"{seconds:.3f}" for seconds in run.seconds)
            print(f"run {number + 1}, {system}: {told} s; {each:.2f} CPU ms for a pod", flush=True)
    return [*cases.values()]


def read(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.operator_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", required=True, metavar="NAME=FOLDER", help="another checkout to measure too")
    parser.add_argument("--runs", type=int, default=6, help="of each checkout")
    parser.add_argument("--kills", type=int, default=10, help="of a rank, in each run")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--pods", type=int, default=24, help="of the larger job")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    given = parser.parse_args(arguments)
    name, equals, folder = given.beside.partition("=")
    if not (name and equals and (Path(folder) / "operator" / "trainmaster_operator").is_dir()):
        parser.error(f"--beside {given.beside}: NAME=FOLDER is expected, and the folder of a checkout in it")
    if min(given.runs, given.kills) < 1 or not 2 <= given.ranks < given.pods:
        parser.error("at least 1 run, 1 kill, 2 ranks and more pods than ranks are needed")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = read(arguments)
    name, _, folder = given.beside.partition("=")
    cases = measured({name: str(Path(folder).resolve()), OURS: ""}, given)
    by = {(case.case, case.system): case for case in cases}
    for case in dict.fromkeys(case.case for case in cases):
        ours, other = by[case, OURS], by[case, name]
        told = ratio(split(ours.samples, given.runs), split(other.samples, given.runs))
        print(
            f"{case}: {ours.median:.3g} {ours.unit} (n {len(ours.samples)}), {name} {other.median:.3g} (n "
            f"{len(other.samples)}), ratio {told[0]:.3f} ({told[1]:.3f} to {told[2]:.3f})"
        )
    if not given.no_write:
        print(f"written: {write('operator-cost', cases, beside=name, kills=given.kills, ranks=given.ranks)}")
    return 0


if __name__ == "__main__":
    with commands.sigterm_exits():
        sys.exit(main())
