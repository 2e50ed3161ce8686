"""One thing that goes wrong in a simulated world: when, to whom, for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`step`: injected when the job first reaches it, `delay_s` later; or right after the `event`-th event of the
    world, counted from 1. `number` picks a victim or a variant."""

    kind: str
    step: int
    delay_s: float
    seconds: float
    number: int
    event: int = 0

    def __str__(self) -> str:
        when = f"after event {self.event}" if self.event else f"{self.delay_s:.2f} s after step {self.step}"
        return f"{self.kind} {when} (for {self.seconds:.2f} s, {self.number})"
