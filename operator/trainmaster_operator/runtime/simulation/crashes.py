"""The crash matrix: in each scenario the operator is killed before and after each of its writes, and started again.

The job must end as it does without a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trainmaster_operator.cluster.faulty import CrashPoint
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.simulation.run import Outcome, simulate
from trainmaster_operator.runtime.simulation.scenarios import SCENARIOS, Scenario

WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")


def crash_matrix(scenario: Scenario, policies: Policies | None = None) -> Iterator[tuple[str, Outcome]]:
    """The undisturbed run first, then two runs for each of its writes; each outcome with its violations."""
    expected = _run(scenario, policies, None)
    if expected.phase != scenario.phase:
        expected.violations.append(f"{scenario.phase} was expected, not {expected.phase}")
    yield scenario.name, expected
    for number in range(1, expected.writes + 1):
        for when in WHEN:
            outcome = _run(scenario, policies, CrashPoint(number, when))
            if scenario.summary(outcome) != scenario.summary(expected):
                outcome.violations.append(f"{scenario.summary(outcome)} instead of {scenario.summary(expected)}")
            yield f"{scenario.name}, the operator dies {when} write {number} of {expected.writes}", outcome


def _run(scenario: Scenario, policies: Policies | None, crash: CrashPoint | None) -> Outcome:
    return simulate(
        scenario.name,
        scenario.workload(),
        scenario.script,
        may_fail=scenario.phase == "Failed",
        policies=policies,
        crash=crash,
    )


__all__ = ["SCENARIOS", "Scenario", "crash_matrix"]
