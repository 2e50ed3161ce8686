"""The goodput benchmark's protocol in a script that imports nothing: for trying out a runner, and for tests.

It computes next to nothing, saves its one number every K steps, and needs all its ranks for each step.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # it is run by its path

from benchmarks.goodput_record import StepLog
from benchmarks.light_world import LightWorld


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between saves")
    parser.add_argument("--step-seconds", type=float, default=0.005)
    parser.add_argument("--timeout", type=float, default=1.0, help="seconds in which a peer must answer")
    given = parser.parse_args()

    rank = int(os.environ["RANK"])
    log = StepLog(given.folder, rank)
    world = LightWorld(given.folder, rank, int(os.environ["WORLD_SIZE"]), given.timeout)
    checkpoint = given.folder / "checkpoint"
    step, weight = 0, 1.0
    if checkpoint.exists():
        words = checkpoint.read_text().split()
        step, weight = int(words[0]), float.fromhex(words[1])
    world.sum(0.0)  # all have read it before anybody writes the next one
    while step < given.steps:
        time.sleep(given.step_seconds)
        weight = weight * 0.9 + world.sum((step + 1) / (rank + 2)) / 100
        step += 1
        log.completed(step, weight)
        if step % given.every == 0 and rank == 0:
            began = time.monotonic()
            partial = checkpoint.with_suffix(".new")
            partial.write_text(f"{step} {weight.hex()}")
            partial.replace(checkpoint)
            log.saved(step, time.monotonic() - began)
    log.ended(hashlib.sha256(weight.hex().encode()).hexdigest()[:16])
    world.sum(0.0)


if __name__ == "__main__":
    main()
