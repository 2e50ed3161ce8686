"""Many whole runs with faults and resizes at random, each held against one that nobody disturbed.

    python -m tests.e2e.soak [--runs 50] [--seed N] [--no-write]

DDP, FSDP and HSDP take turns. Two runs of three keep their size and have to end as the calm one did, bit for bit: the
losses, and the digests of all states after each step and at each resume. The third is resized now and then besides; its
losses have to agree within 1e-6. A run that doesn't is a line with its seed, and exit code 1; the others still run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import Case, write
from tests.e2e.harness import Outcome, elastic, run, small_demo_job
from tests.e2e.live import live
from trainmaster_operator.cli.run import run_comparison

RANKS, STEPS, LONGER = 4, 60, 240
TOLERANCE = 1e-6
MESHES = {"ddp": {"dpShard": 1}, "fsdp": {"dpReplicate": 1}, "hsdp": {"dpShard": 2}}
SIZES = {"ddp": (2, 3), "fsdp": (2, 3), "hsdp": (2,)}
KINDS = (
    "kill",
    "kill",
    "raise",
    "exit",
    "stop",
    "kill-agent",
    "kill-pod",
    "lose-store",
    "kill-operator",
    "partition",
    "corrupt-checkpoint",
    "api-outage",
)
MORE = {"partition": ",seconds=1", "api-outage": ",seconds=1", "exit": ",code=9"}
EVERY_RESIZED = 3


@dataclass(frozen=True)
class Plan:
    mesh: str
    resizes: bool
    seed: str

    def faults(self) -> list[str]:
        chance = random.Random(self.seed)
        steps = sorted(chance.sample(range(3, STEPS - 2), chance.randint(3, 5)))
        kinds = [chance.choice(KINDS) for _ in steps]
        faults = []
        for kind, step in zip(kinds, steps, strict=True):
            rank = 0 if kind in ("kill-operator", "api-outage", "corrupt-checkpoint") else chance.randrange(RANKS)
            faults.append(f"{kind}:rank={rank},step={step}{MORE.get(kind, '')}")
        return faults


def job(folder: Path, mesh: str, steps: int) -> Path:
    return elastic(small_demo_job(folder, RANKS, MESHES[mesh], steps))


def disturbed(plan: Plan, path: Path, out: Path) -> Outcome:
    if not plan.resizes:
        return run(path, out, plan.faults(), digests=True)
    chance = random.Random(f"{plan.seed}/sizes")
    kills = [f"kill:rank={chance.randrange(2)},step={step}" for step in sorted(chance.sample(range(3, LONGER - 20), 2))]
    with live(path, out, "stdlib-gpt", faults=kills) as training:
        training.wait_step(chance.randint(5, 60))
        for size in (chance.choice(SIZES[plan.mesh]), RANKS):  # to fewer pods and back, wherever the run is by then
            training.resize(size)
        return training.ended()


def wrong(plan: Plan, calm: Outcome, stormy: Outcome) -> str:
    """What differs; "" when nothing does."""
    if stormy.exit_code:
        return f"exit code {stormy.exit_code}: {stormy.output[-2000:]}"
    tolerance = TOLERANCE if plan.resizes else 0.0
    found = run_comparison.compare(run_comparison.read(calm.out), run_comparison.read(stormy.out), tolerance)
    if found is not None:
        return f"differs: {found}"
    if not plan.resizes and stormy.final()["digest"] != calm.final()["digest"]:
        return "the parameters at the end differ"
    return ""


def apart(calm: Outcome, stormy: Outcome) -> float:
    """The largest relative difference of a step's loss, over all that was recorded for it."""
    ours, theirs = stormy.losses(), calm.losses()
    assert sorted(ours) == sorted(theirs)
    exact = {step: float.fromhex(next(iter(said))) for step, said in theirs.items()}
    return max(abs(float.fromhex(text) / exact[step] - 1) for step, said in ours.items() for text in said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"--seed {given.seed}", flush=True)
    calm: dict[tuple[str, bool], Outcome] = {}
    differences = {
        (mesh, resizes): Case(f"{mesh}, {'resized and killed' if resizes else 'faults'}", "trainmaster", "relative")
        for mesh in MESHES
        for resizes in (False, True)
    }
    recoveries = Case("recoveries in a run", "trainmaster", "recoveries")
    failures = 0
    try:
        for number in range(given.runs):
            mesh = list(MESHES)[number % len(MESHES)]
            resizes = (number // len(MESHES)) % EVERY_RESIZED == EVERY_RESIZED - 1
            plan = Plan(mesh, resizes, f"{given.seed}/{number}")
            place = folder / f"{mesh}-{resizes}"
            place.mkdir(exist_ok=True)
            path = job(place, mesh, LONGER if resizes else STEPS)
            if (mesh, resizes) not in calm:
                calm[mesh, resizes] = run(path, place / "calm", digests=not resizes)
                assert calm[mesh, resizes].exit_code == 0, calm[mesh, resizes].output
            out = place / f"run-{number}"
            try:
                stormy = disturbed(plan, path, out)
                told = wrong(plan, calm[mesh, resizes], stormy)
            except Exception as error:  # noqa: BLE001  it ended while something waited for it, or left no results
                told = f"{type(error).__name__}: {error}"
            if told:
                failures += 1
            else:
                differences[mesh, resizes].samples.append(apart(calm[mesh, resizes], stormy))
                recoveries.samples.append(len(stormy.status["recoveries"]))
                shutil.rmtree(out)
            what = "resizes, 2 kills" if resizes else " ".join(plan.faults())
            print(f"{number:3} {mesh} {told or 'equal'} | {what}", flush=True)
            if not given.no_write:
                write("continuity", [*(case for case in differences.values() if case.samples), recoveries])
    finally:
        if not failures:
            shutil.rmtree(folder)
    total = sum(recoveries.samples)
    print(f"{given.runs} runs, {failures} differ, {total:.0f} recoveries" + (f"; see {folder}" if failures else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
