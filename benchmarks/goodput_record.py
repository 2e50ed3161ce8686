"""What a script has to write for benchmarks/goodput.py: who runs a rank, each completed step, each save, the end.

A script of one's own copies this file, or writes the same lines: it needs the standard library alone.

    log = StepLog(folder, rank)        # once, when the rank begins
    log.completed(step, loss)          # after each step, from 1
    log.saved(step, seconds)           # after a save, with the seconds that the loop stood still for it
    log.ended(digest)                  # after the last step; the digest of the state, as text without spaces
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class StepLog:
    """Appends lines of one rank. Each line is written at once, so a killed rank leaves none in halves."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._attempt = time.monotonic_ns()
        self._file = os.open(folder / f"steps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        partial = folder / f"pid-{rank}.{os.getpid()}"
        partial.write_text(str(os.getpid()))
        partial.replace(folder / f"pid-{rank}")

    def completed(self, step: int, loss: float) -> None:
        self._write("step", step, float(loss).hex())

    def saved(self, step: int, seconds: float) -> None:
        self._write("save", step, f"{seconds:.6f}")

    def ended(self, digest: str) -> None:
        self._write("end", 0, digest)

    def _write(self, what: str, step: int, value: str) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {self._attempt} {what} {step} {value}\n".encode())
