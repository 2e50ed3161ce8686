"""The recovery benchmark's script without torch: its imports take no time, so what is left is the restart itself.

Like `recovery_script.py` it loses a rank in each round, has a checkpoint file, and needs all ranks in each step.
"""

from __future__ import annotations

import time

BEGAN_NS = time.monotonic_ns()

import argparse  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[1]))  # it is run by its path

from benchmarks.light_world import LightWorld  # noqa: E402

IMPORTS_NS = time.monotonic_ns() - BEGAN_NS
TIMEOUT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="folder for the time stamps")
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--settle", type=float, nargs=2, required=True, help="seconds before the first and later kills")
    parser.add_argument("--after", type=int, default=20, help="steps after the last recovery")
    args = parser.parse_args()

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    world = LightWorld(args.folder, rank, size, TIMEOUT_S)
    joined_ns = time.monotonic_ns()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    victim = (attempt + 1) % size
    checkpoint = args.folder / "checkpoint"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    stamps = os.open(args.folder / f"stamps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def stamp(event: str, at_ns: int = 0, imports_ns: int = IMPORTS_NS) -> None:
        os.write(stamps, f"{at_ns or time.monotonic_ns()} {attempt} {event} {step} {imports_ns}\n".encode())

    stamp("begin", BEGAN_NS, 0)
    stamp("joined", joined_ns)
    stamp("built")
    first: float | None = None
    done = 0
    while attempt < args.kills or done < args.after:
        settle = args.settle[0 if attempt == 0 else 1]
        if attempt < args.kills and rank == victim and first is not None and time.monotonic() - first > settle:
            stamp("death")
            os.kill(os.getpid(), signal.SIGKILL)
        world.sum(1.0)
        step += 1
        done += 1
        if first is None:
            first = time.monotonic()
            stamp("first")
        if step % 10 == 0 and rank == 0:
            partial = checkpoint.with_suffix(".tmp")
            partial.write_text(str(step))
            partial.rename(checkpoint)
        time.sleep(0.02)
    world.sum(0.0)


if __name__ == "__main__":
    main()
