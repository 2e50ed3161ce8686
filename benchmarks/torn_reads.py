"""Whether the record between a rank and its agent is ever read torn, and what a read and a write of it cost.

    python -m benchmarks.torn_reads [--reads 10000000] [--kills 300] [--beside NAME=FOLDER] [--no-write]

In each direction a writer publishes records at full speed while another process reads; all fields of a record have one
number, so a torn one shows. Writers are then killed at random moments, and what they leave is read. `--beside` measures
the record of another checkout in the same way. Exits with 1 if a record was torn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.record import Case, write

if TYPE_CHECKING:
    from trainmaster.contract.wire.progress_record import Control, Progress, ProgressRecord
    from trainmaster.host import processes
else:
    try:
        from trainmaster.contract.wire.progress_record import Control, Progress, ProgressRecord
        from trainmaster.host import processes
    except ModuleNotFoundError:  # of --beside: a checkout from before these modules moved
        from trainmaster.contract.wire.progress import Control, Progress, ProgressRecord

        from trainmaster.agent import processes

OURS = "double buffer"
DIRECTIONS = ("progress", "control")
_FIRST = 2_000_003
_NUMBERS = range(_FIRST, 2**31, _FIRST)  # that records have: they differ in all bytes of a field
_COLLECTIVES_APART, _KINDS = 99_999_989, 10
_BLOCKS, _PER_BLOCK = 30, 1000  # operations of which the time is taken
_LONGEST_LIFE_S = 0.002  # of a writer that is killed


def progress_of(number: int) -> Progress:
    return Progress(**{field.name: number for field in fields(Progress)})


def control_of(number: int) -> Control:
    return Control(*[number] * len(fields(Control)))


def number_of(told: Progress | Control) -> int | None:
    """Return the number that all fields have, None if they differ. The last collective is published on its own."""
    values = dict(vars(told))
    if isinstance(told, Progress) and values.pop("collectives") % _KINDS != values.pop("collective"):
        return None
    numbers = set(values.values())
    return int(numbers.pop()) if len(numbers) == 1 else None


def publish_for_ever(direction: str, record: ProgressRecord) -> None:
    progresses, controls = [*map(progress_of, _NUMBERS)], [*map(control_of, _NUMBERS)]
    publish_control = control_writer(record)
    for number in itertools.count():
        if direction == "control":
            publish_control(controls[number % len(controls)])
        else:
            record.write(progresses[number % len(progresses)])
            record.entered(number * _COLLECTIVES_APART, number * _COLLECTIVES_APART % _KINDS)


def control_writer(record: ProgressRecord) -> Callable[[Control], Any]:
    """Return what publishes the agent's half without looking first whether it differs: a reader beside it meets many
    times as many writes. A former record that has no such function is written by `set_control`."""
    write = getattr(getattr(record, "_control", None), "write", None)
    return record.set_control if write is None else lambda control: write(*vars(control).values())


def start_writer(direction: str, fd: int) -> int:
    """Fork a process that publishes until it is killed, and return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        processes.die_with_parent(parent)
        try:
            publish_for_ever(direction, ProgressRecord.open(fd))
        finally:
            os._exit(1)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def read_beside_a_writer(direction: str, reads: int) -> dict[str, int]:
    """Return how many of the reads were torn, and how many different records were read."""
    record = ProgressRecord.create(1, 0)
    publish(direction, record)
    read: Callable[[], Progress | Control] = record.control if direction == "control" else record.read
    writer = start_writer(direction, record.fd)
    torn = changes = last = 0
    for _ in range(reads):
        number = number_of(read())
        if number is None:
            torn += 1
        elif number != last:
            changes, last = changes + 1, number
    kill(writer)
    record.close()
    return {"reads": reads, "torn": torn, "changes": changes}


def read_after_kills(direction: str, kills: int) -> int:
    """Return how many killed writers left a record that a new reader finds torn."""
    torn, moments = 0, random.Random(1)
    for _ in range(kills):
        record = ProgressRecord.create(1, 0)
        publish(direction, record)
        writer = start_writer(direction, record.fd)
        while number_of(record.control() if direction == "control" else record.read()) in (None, _FIRST):
            pass  # it has not begun
        time.sleep(moments.uniform(0, _LONGEST_LIFE_S))
        kill(writer)
        torn += is_left_torn(direction, record.fd)
        record.close()
    return torn


def is_left_torn(direction: str, fd: int) -> bool:
    """Whether a new reader finds a torn record, or one whose head is torn, so that it can't be opened."""
    try:
        left = ProgressRecord.open(os.dup(fd))
    except ValueError:
        return True
    torn = number_of(left.control() if direction == "control" else left.read()) is None
    left.close()
    return torn


def publish(direction: str, record: ProgressRecord) -> None:
    """The first record, whose fields have one number as all others."""
    if direction == "control":
        record.set_control(control_of(_FIRST))
    else:
        record.write(progress_of(_FIRST))
        record.entered(0, 0)


def seconds_of(operation: Callable[[int], Any]) -> list[float]:
    """Return the time of one operation, the mean of each block."""
    found = []
    for _ in range(_BLOCKS):
        began = time.perf_counter()
        for number in range(_PER_BLOCK):
            operation(number)
        found.append((time.perf_counter() - began) / _PER_BLOCK)
    return found


def costs(direction: str) -> dict[str, list[float]]:
    """Return seconds of a write, of a read behind each write, and of a read of what was read before."""
    record = ProgressRecord.create(1, 0)
    progresses, controls = [progress_of(1), progress_of(2)], [control_of(1), control_of(2)]

    def publish_next(number: int) -> None:
        if direction == "control":
            record.set_control(controls[number % 2])
        else:
            record.write(progresses[number % 2])

    def read(_: int) -> None:
        if direction == "control":
            record.control()
        else:
            record.read()

    def publish_and_read(number: int) -> None:
        publish_next(number)
        read(number)

    writes, both, again = seconds_of(publish_next), seconds_of(publish_and_read), seconds_of(read)
    record.close()
    return {"a write": writes, "a write and a read": both, "a read of the same": again}


def measure(direction: str, reads: int, kills: int) -> dict[str, Any]:
    found = costs(direction)
    beside = read_beside_a_writer(direction, reads)
    return {**beside, "kills": kills, "torn after a kill": read_after_kills(direction, kills), "costs": found}


def measured(direction: str, reads: int, kills: int, folder: str = "") -> dict[str, Any]:
    """`measure` in a process of its own, with the record of the checkout in `folder` instead of this one's."""
    command = [sys.executable, "-m", "benchmarks.torn_reads", "--part", direction]
    command += ["--reads", str(reads), "--kills", str(kills)]
    env = {**os.environ, "PYTHONPATH": str(Path(folder) / "trainer")} if folder else None
    done = subprocess.run(command, stdout=subprocess.PIPE, env=env, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cases_of(direction: str, system: str, found: dict[str, Any]) -> list[Case]:
    counts = [(name, [float(found[name])]) for name in ("reads", "torn", "changes", "kills", "torn after a kill")]
    return [
        *(Case(f"{direction}, {name}", system, "records", samples) for name, samples in counts),
        *(Case(f"{direction}, {name}", system, "s", samples) for name, samples in found["costs"].items()),
    ]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--reads", type=int, default=10_000_000, help="in each direction (default: 10,000,000)")
    arguments.add_argument("--kills", type=int, default=300, help="in each direction (default: 300)")
    arguments.add_argument("--beside", default="", metavar="NAME=FOLDER", help="another checkout to measure too")
    arguments.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    arguments.add_argument("--part", choices=DIRECTIONS, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.reads < 1 or given.kills < 0:
        arguments.error("at least 1 read and no negative number of kills are needed")
    if given.part:
        print(json.dumps(measure(given.part, given.reads, given.kills)))
        return 0
    name, equals, folder = given.beside.partition("=")
    if given.beside and not (equals and (Path(folder) / "trainer" / "trainmaster").is_dir()):
        arguments.error(f"--beside {given.beside}: NAME=FOLDER is expected, and the folder of a checkout in it")
    cases = []
    for direction in DIRECTIONS:
        for system, of in ((name, folder), (OURS, "")) if folder else ((OURS, ""),):
            found = measured(direction, given.reads, given.kills, of)
            cases += cases_of(direction, system, found)
            print(
                f"{direction}, {system}: {found['torn']} of {found['reads']} reads torn, {found['torn after a kill']} "
                f"of {found['kills']} records of killed writers",
                flush=True,
            )
    if not given.no_write:
        print(f"written: {write('torn-reads', cases)}")
    return int(any(case.samples[0] for case in cases if case.system == OURS and ", torn" in case.case))


if __name__ == "__main__":
    sys.exit(main())
