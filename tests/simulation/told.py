"""How a test tells what went wrong in a simulated world."""

from __future__ import annotations

from simulation.schedule_runs.simulated_run import Outcome


def told(outcome: Outcome) -> str:
    return "\n".join([*map(str, outcome.faults), *outcome.log, *outcome.violations])
