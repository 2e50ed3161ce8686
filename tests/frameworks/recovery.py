"""How long a rank that was killed is away, forked and executed: `python -m tests.frameworks.recovery jax --kills 5`.

From the death of the rank to the first step that is completed again, as the status of the run tells. The first kill
comes late enough for forks to be there; a second run has `recovery.zygote: false`, where each restart imports anew, as
a plain restart of all ranks does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.frameworks.runs import SUBJECTS, run

EVERY = 30  # steps between two kills


def measure(name: str, kills: int, first: int, *, zygote: bool) -> list[float]:
    """Return the seconds of each recovery of one run."""
    subject = SUBJECTS[name]
    steps = first + EVERY * kills + 10
    steps_in_words = str(steps // 15 + 1 if subject.length[0] == "--epochs" else steps)
    subject = replace(subject, length=(subject.length[0], steps_in_words))
    faults = [f"kill:rank=1,step={first + EVERY * kill}" for kill in range(kills)]
    with tempfile.TemporaryDirectory() as folder:
        recovery = {"zygote": zygote, "budget": {"inPlace": kills + 1}}
        ended = run(subject, Path(folder), faults, pause_s=0.1, recovery=recovery)
        if ended.exit_code:
            raise SystemExit(ended.output)
        recoveries = ended.status["recoveries"]
    return [recovery["totalSeconds"] for recovery in recoveries]


def shown(seconds: Sequence[float]) -> str:
    told = ", ".join(f"{each:.2f}" for each in seconds)
    return f"median {statistics.median(seconds):.2f} s of {len(seconds)} ({told})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.recovery")
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--first", type=int, default=300, help="step of the first kill, by which forks are there")
    options = parser.parse_args()
    print(f"{options.subject} forked: {shown(measure(options.subject, options.kills, options.first, zygote=True))}")
    print(f"{options.subject} executed: {shown(measure(options.subject, options.kills, 20, zygote=False))}")


if __name__ == "__main__":
    main()
