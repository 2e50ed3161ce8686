"""What a step waits for: its data, and the copy of a checkpoint.

    python -m benchmarks.waits [--no-write]

One rank of our own loop, which computes with one thread. Data: from the folder of texts, from a file of tokens, and
from one that is no longer in the page cache. Goal: less than 1 % of a step. Checkpoints: how long the loop waits for
one, in `save` and before the next optimizer step, up to which the copy goes on beside it; for states of 39 MB and of
1.2 GB. Goal: less than 50 ms, or 5 % of a step that takes a second. What the copy, in a thread of its own, takes of the
machine is no waiting; steps after a save are told beside the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import Case, write
from trainmaster.contract.wire import environment

SKIPPED = 3  # steps, and one save: they pay for pages
SMALL = {"layers": 4, "width": 256, "heads": 4, "context": 128}
LARGE = {"layers": 8, "width": 1024, "heads": 16, "context": 128}


def config(options: dict[str, int], batch: int, steps: int, every: int, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"options": options},
        "data": data,
        "steps": steps,
        "batch": {"global": batch},
        "optimizer": {"lr": 1e-4},
        "checkpoint": {"every": every, "keep": 1},
    }


def rank(evicted: str) -> None:
    """In a process of its own: train the job in the environment, and print what it waited for."""
    from trainmaster.checkpoint.state.checkpoint_session import Session
    from trainmaster.data.prefetch import Prefetch
    from trainmaster.train import loop

    found: dict[str, list[float]] = {"steps": [], "data": [], "saves": [], "settled": []}
    batches, one_step, save, settle = Prefetch.batches, loop.Training.one_step, loop.Training.save, Session.settle

    def timed_batches(self: Any, *arguments: Any) -> Iterator[Any]:
        each, took = batches(self, *arguments), 0.0
        while True:
            began = time.perf_counter()
            batch = next(each, None)
            took += time.perf_counter() - began
            if batch is None:
                found["data"].append(took)
                return
            yield batch

    def timed_step(self: Any) -> None:
        if evicted:
            with open(evicted, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        one_step(self)
        found["steps"].append(time.perf_counter() - began)

    def timed_save(self: Any) -> None:
        began = time.perf_counter()
        save(self)
        found["saves"].append(time.perf_counter() - began)

    def timed_settle(self: Any) -> None:
        began = time.perf_counter()
        settle(self)
        found["settled"].append(time.perf_counter() - began)

    Session.settle = timed_settle  # type: ignore[method-assign]
    Prefetch.batches = timed_batches  # type: ignore[method-assign]
    loop.Training.one_step, loop.Training.save = timed_step, timed_save  # type: ignore[method-assign]
    try:
        loop.main()
    finally:
        print(json.dumps(found))


def waited(job: dict[str, Any], evicted: str = "") -> dict[str, list[float]]:
    """Seconds: of each step, of its waiting for data and for the save before it, and of each save."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "WORLD_SIZE": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
            environment.CONFIG: json.dumps(job),
            environment.CHECKPOINT_DIR: folder,
        }
        command = [sys.executable, "-m", "benchmarks.waits", "--rank", evicted]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"waits: the rank ended with {done.returncode}: {done.stderr[-2000:]}")
        found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
        return found


def tokens(folder: Path) -> Path:
    """A file of two-byte tokens: the text of the folder of texts."""
    import numpy as np

    from trainmaster.data import text_files
    from trainmaster.data.source_options import TextOptions

    text = text_files.find(text_files.STDLIB, TextOptions())
    path = folder / "tokens.npy"
    np.save(path, np.frombuffer(text.read(0, text.size), np.uint8).astype(np.uint16))
    os.sync()  # what isn't on disk yet can't leave the page cache
    return path


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    arguments.add_argument("--rank", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.rank is not None:
        rank(given.rank)
        return 0
    cases, good = [], True
    with tempfile.TemporaryDirectory() as folder:
        path = tokens(Path(folder))
        sources = {
            "text": ({"path": "@stdlib"}, ""),
            "tokens": ({"source": "tokens", "path": str(path)}, ""),
            "tokens, not in the page cache": ({"source": "tokens", "path": str(path)}, str(path)),
        }
        for name, (data, evicted) in sources.items():
            found = waited(config(SMALL, 8, 40, 1000, data), evicted)
            shares = [wait / step for wait, step in zip(found["data"], found["steps"], strict=True)][SKIPPED:]
            cases.append(Case("data, of a step", name, "ratio", shares))
            good = good and cases[-1].median < 0.01
            print(f"data from {name:30} {cases[-1].median:.3%} of a step, at most {max(shares):.3%}", flush=True)
    for name, options, batch in (("39 MB", SMALL, 8), ("1.2 GB", LARGE, 4)):
        found = waited(config(options, batch, 21, 2, {"path": "@stdlib"}))  # saved behind each even step
        calm, behind = slice(SKIPPED, None, 2), slice(SKIPPED + 1, None, 2)
        waits = [a + b for a, b in zip(found["saves"][1:], found["settled"][behind], strict=False)]
        steps = Case("a step, no save before it", name, "s", found["steps"][calm])
        after = Case("a step behind a save", name, "s", found["steps"][behind])
        saves = Case("waiting for a save", name, "s", waits)
        cases += [steps, after, saves]
        good = good and (saves.median < 0.05 or (steps.median >= 1 and saves.median < 0.05 * steps.median))
        print(
            f"a save of {name:8} keeps the loop for {saves.median * 1e3:.1f} ms; a step takes {steps.median:.3f} s, "
            f"one behind a save {after.median:.3f} s"
        )
    if not given.no_write:
        print(f"written: {write('waits', cases)}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
