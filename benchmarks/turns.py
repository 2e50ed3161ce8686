"""Systems that take turns: each trains a block of steps while the others wait, so that a machine whose speed drifts
drifts for all of them."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# One-sided 95 % quantiles of Student's t by degrees of freedom; for others, of the next lower one here.
T95 = {9: 1.833, 11: 1.796, 14: 1.761, 19: 1.729, 24: 1.711, 29: 1.699, 39: 1.685, 47: 1.678, 59: 1.671}
_WIDTH = 20  # characters of each number of a report


@dataclass(frozen=True)
class Block:
    """What a rank tells of one."""

    seconds: float
    cpu_seconds: float  # of all of the rank's threads
    loss: float  # of the last step, after the warm-up alone; NaN where the rank knows none


class Meter:
    """Ends a rank's block: tells how long it took, and waits for the next turn."""

    def __init__(self, first: int, block: int, turns: int, took: int) -> None:
        """The warm-up has `first` steps. `turns`: is read from at the end of a block, `took` is written to."""
        self.first, self.block = first, block
        self._turns, self._took = turns, took
        self._begin()

    def step(self, step: int, loss: Callable[[], float] = lambda: math.nan) -> None:
        """Call after each step. `loss`: of this step, asked after the warm-up alone."""
        if step < self.first or (step - self.first) % self.block:
            return
        self._tell(loss() if step == self.first else math.nan)
        self._wait()
        self._begin()

    def _begin(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def _tell(self, last_loss: float) -> None:
        """What the block took."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu_began
        os.write(self._took, "".join(f"{number:{_WIDTH}.12g}" for number in (seconds, cpu, last_loss)).encode())

    def _wait(self) -> None:
        """For the next turn."""
        if not os.read(self._turns, 1):
            raise SystemExit("nobody says any more whose turn it is")


class Turns:
    """The other side of the meters of all ranks of one system."""

    def __init__(self, ranks: int) -> None:
        self._turns = [os.pipe() for _ in range(ranks)]
        self._took = [os.pipe() for _ in range(ranks)]

    def ends(self, rank: int) -> tuple[int, int]:
        """File descriptors of a rank's meter: (turns, took)."""
        return self._turns[rank][0], self._took[rank][1]

    def started(self) -> None:
        """All ranks have their ends: those of this process are closed."""
        for rank in range(len(self._turns)):
            for end in self.ends(rank):
                os.close(end)

    def release(self) -> None:
        """Let all ranks begin a block."""
        for pipe in self._turns:
            os.write(pipe[1], b".")

    def finished(self) -> list[Block]:
        """Of each rank, when all have ended their block. Raises EOFError if one has died."""
        reports = []
        for pipe in self._took:
            reports.append(os.read(pipe[0], 3 * _WIDTH))
            if not reports[-1]:  # the others may wait for it for ever
                raise EOFError
        return [Block(*map(float, report.split())) for report in reports]

    def close(self) -> None:
        for turns, took in zip(self._turns, self._took, strict=True):
            os.close(turns[1])
            os.close(took[0])


def lower_bound(ratios: Sequence[float]) -> float:
    """Lower end of the one-sided 95 % interval of the mean of log-ratios, as a ratio."""
    logs = [math.log(ratio) for ratio in ratios]
    quantile = T95[max(degrees for degrees in T95 if degrees < len(logs))]
    return math.exp(statistics.mean(logs) - quantile * statistics.stdev(logs) / math.sqrt(len(logs)))
