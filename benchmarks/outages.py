"""A rank's death while nobody leads: how long training stands still then, beside what it takes when somebody does.

    python -m benchmarks.outages [--repetitions 5] [--no-write]

Our own loop under `trainmaster run`, 4 ranks. One is killed while a leader leads, in the very step in which the leader
is killed too, and while the API server answers nobody. A sample is the longest stretch without a completed step. It has
the step in it that the death cut short, which is killed when its gradients are there; a step's own time is beside it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import counts
from benchmarks.record import Case, write
from benchmarks.recovery import table
from benchmarks.stepwatch import Steps
from tests.e2e.harness import run, small_demo_job

RANKS, STEPS, STRUCK = 4, 600, 300
KILL = f"kill:rank=1,step={STRUCK}"
A_STEP = "a step of that run"
CASES = {
    "a leader leads": [KILL],
    "the leader is killed in the same step": [f"kill-operator:rank=0,step={STRUCK}", KILL],
    "no leader, the API server away": [
        f"api-outage:rank=0,step={STRUCK - 50},seconds=20",
        f"kill-operator:rank=0,step={STRUCK - 50}",
        KILL,
    ],
}


def stretches_s(faults: list[str]) -> tuple[float, float]:
    """Seconds of (the longest stretch without a step, one between two steps as they mostly are)."""
    with tempfile.TemporaryDirectory(prefix="bench-outages-") as folder:
        out = Path(folder) / "out"
        with Steps(out / "metrics.jsonl") as steps:
            done = run(small_demo_job(Path(folder), RANKS, {"dpShard": 1}, STEPS), out, faults)
        if done.exit_code or done.status["restarts"]["total"] != 1:
            raise SystemExit(f"outages: {faults}: exit code {done.exit_code}, {done.output[-2000:]}")
        between = [b - a for a, b in itertools.pairwise(steps.seen[1:])]  # the first is the file's beginning
        return max(between), statistics.median(between)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, repetitions=1)
    stands = {name: Case(f"a rank killed, {name}", "trainmaster", "s") for name in CASES}
    steps = {name: Case(f"{A_STEP}, {name}", "trainmaster", "s") for name in CASES}
    for _ in range(given.repetitions):
        for name, faults in CASES.items():
            longest, step = stretches_s(faults)
            stands[name].samples.append(longest)
            steps[name].samples.append(step)
            print(f"{name:40} {longest:.2f} s, a step {step:.3f} s", flush=True)
    cases = [*stands.values(), *steps.values()]
    if not given.no_write:
        print(f"written to {write('outages', cases)}")
    print(table(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
