"""The lines that rank 0 prints while it trains, for people who read a pod's log."""

from __future__ import annotations

import time

from trainmaster.train.measures.early_stopping import Scores
from trainmaster.train.measures.mfu import Utilization

EVERY_S = 10.0
_MEMORY = {"ram": "the ranks' own memory", "peer": "memory, some of it a peer's"}


class StepLog:
    """Prints a line for the first step, for the last one, and every ten seconds between them.

    `shown` is true on the one rank that prints. `unit` is the unit of samples.
    """

    def __init__(self, shown: bool, total_steps: int, unit: str = "tokens") -> None:
        self._shown, self._total, self._unit = shown, total_steps, unit
        self.utilization: Utilization | None = None  # utilization of devices, if it is known
        self._said_at: float | None = None
        self._tokens = self._steps = 0  # since then

    def print_note(self, words: str) -> None:
        """Print a sentence about the whole run. "" prints nothing."""
        if self._shown and words:
            print(words, flush=True)

    def resumed(self, step: int, path: str, tier: str) -> None:
        if self._shown:
            print(f"resumed after step {step} of {self._total}, from {_MEMORY.get(tier, path)}", flush=True)

    def step(self, step: int, loss: float, tokens: int, seconds: float) -> None:
        """Note that a step of the whole world is complete, with its loss, its tokens and its seconds."""
        if not self._shown:
            return
        now = time.monotonic()
        self._tokens, self._steps = self._tokens + tokens, self._steps + 1
        took = max(seconds, 1e-9) if self._said_at is None else now - self._said_at
        if self._said_at is not None and step < self._total and took < EVERY_S:
            return
        words = f"step {step} of {self._total}: loss {loss:.4f}, {self._tokens / took:,.0f} {self._unit}/s"
        if self.utilization is not None:
            words += f", {self.utilization.words(took / self._steps)}"
        print(words, flush=True)
        self._said_at, self._tokens, self._steps = now, 0, 0

    def evaluation(self, scores: Scores) -> None:
        """Print a new evaluation, and why the run ends with it, if it does."""
        if not self._shown:
            return
        print(f"evaluation: step {scores.step}, loss {scores.loss:.4f}", flush=True)
        if scores.stops:
            print(scores.explain_stop(), flush=True)
