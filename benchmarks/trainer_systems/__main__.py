"""One rank of one system: `python -m benchmarks.trainer_systems SYSTEM ROW FIRST BLOCK TURNS TOOK FOLDER`."""

from __future__ import annotations

import importlib
import os
import sys

from benchmarks.turns import Meter

MODULES = {"torch": "plain", "accelerate": "accelerated", "deepspeed": "deepspeeded"}


def main() -> None:
    system, row, first, block, turns, took, folder = sys.argv[1:]
    meter = Meter(int(first), int(block), int(turns), int(took))
    if system == "trainmaster":
        from benchmarks.trainer_systems import ours

        ours.train(int(os.environ["RANK"]), folder, meter)
    else:
        from benchmarks.trainer_systems.job import Job

        module = importlib.import_module(f"benchmarks.trainer_systems.{MODULES[system]}")
        module.train(Job.from_environment(row), meter)


if __name__ == "__main__":
    main()
