"""How a test tells what went wrong in a simulated world."""

from __future__ import annotations

from trainmaster_operator.runtime.simulation.run import Outcome


def told(outcome: Outcome) -> str:
    return "\n".join([*map(str, outcome.faults), *outcome.log, *outcome.violations])
