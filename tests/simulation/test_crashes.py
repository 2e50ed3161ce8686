"""The operator dies before and after each write of each scenario, comes back, and the job ends as if it had not."""

from __future__ import annotations

import pytest

from simulation.schedule_runs.crash_matrix import EARLY_S, SCENARIOS, Scenario, crashed
from tests.simulation.matrix import Matrices
from tests.simulation.told import told

LEAST = 2_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_crash_at_any_write_changes_nothing_about_the_end(scenario: Scenario, matrices: Matrices) -> None:
    matrix = matrices.of(scenario)
    for name, outcome in matrix:
        assert not outcome.violations, f"{name}\n{told(outcome)}"
    assert len(matrix) > 2 * 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_is_forked_off_is_the_same_as_one_from_the_begin(when: str, matrices: Matrices) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "pod replacement")
    forked = next(outcome for name, outcome in matrices.of(scenario) if f"dies {when} write 8 of" in name)
    assert next(at for at, words in forked.noted if "dies at write" in words) > EARLY_S
    assert forked.log == crashed(scenario, 8, when).log


def test_the_matrix_is_large(matrices: Matrices) -> None:
    """The tests of all scenarios make so many runs, wherever each of them runs. Those of a scenario are counted by a
    run of it, so no more scenarios are counted than it takes."""
    runs = 0
    for scenario in sorted(SCENARIOS, key=lambda scenario: not matrices.has(scenario)):
        runs += matrices.count(scenario)
        if runs >= LEAST:
            break
    assert runs >= LEAST
