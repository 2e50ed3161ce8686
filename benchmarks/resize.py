"""Other sizes while a job trains, on this machine: 4 pods, then 3, then 4 again.

    python -m benchmarks.resize [--repetitions 3] [--no-write]

A sample is the longest stretch without a step after the size is asked for, or the time from then to that stretch's end:
ranks train on until they have agreed where to stop.
Before a job grows its new pods start while the others train, so that only the change itself interrupts it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import counts
from benchmarks.clocks import interrupted, nth_clock
from benchmarks.record import Case, write
from benchmarks.recovery import table
from benchmarks.stepwatch import Interruption, Steps
from tests.e2e.harness import elastic, small_demo_job
from tests.e2e.live import live

MESHES = {"DDP": {"dpShard": 1}, "FSDP": {"dpReplicate": 1}}  # the axis that is left out grows and shrinks
SIZES = ((4, 3), (3, 4))
WARM_STEP = 300  # by then the zygote has learned
REST_S = 1.0  # a stretch of ordinary steps, before and after each change


def measured(folder: Path, mesh: dict[str, int]) -> list[tuple[Interruption, dict[str, float]]]:
    """Of each change, with the operator's phase clock."""
    job = elastic(small_demo_job(folder, 4, mesh, 1_000_000, checkpoint={"every": 1000, "keep": 3}))
    found = []
    with live(job, folder / "out", "stdlib-gpt") as training:
        training.wait_step(WARM_STEP)
        with Steps(folder / "out" / "metrics.jsonl") as steps:
            for number, (_, size) in enumerate(SIZES, 1):
                time.sleep(REST_S)
                asked = time.monotonic()
                training.resize(size)
                clock = training.wait(partial(nth_clock, number), "the change is over")
                time.sleep(REST_S)
                found.append((steps.interruption(asked), clock))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, repetitions=1)
    cases: list[Case] = []
    for family, mesh in MESHES.items():
        runs = []
        for _ in range(given.repetitions):
            with tempfile.TemporaryDirectory(prefix="bench-resize-") as folder:
                runs.append(measured(Path(folder), mesh))
        for (was, size), samples in zip(SIZES, zip(*runs, strict=True), strict=True):
            found = interrupted(f"{family}, {was} pods, then {size}", samples)
            cases += found
            print(f"{found[0].case:24} {' '.join(f'{s:.2f}' for s in found[0].samples)}", flush=True)
    if not given.no_write:
        print(f"written to {write('resize', cases)}")
    print(table(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
