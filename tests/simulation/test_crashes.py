"""The operator dies before and after each write of each scenario, comes back, and the job ends as if it had not."""

from __future__ import annotations

import pytest

from tests.simulation.told import told
from trainmaster_operator.runtime.simulation.crashes import SCENARIOS, crash_matrix

LEAST = 1_000
runs: dict[str, int] = {}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_crash_at_any_write_changes_nothing_about_the_end(scenario):
    for name, outcome in crash_matrix(scenario):
        runs[scenario.name] = runs.get(scenario.name, 0) + 1
        assert not outcome.violations, f"{name}\n{told(outcome)}"
    assert runs[scenario.name] > 2 * 5


def test_the_matrix_is_large():
    if len(runs) < len(SCENARIOS):
        pytest.skip("not all of it ran")
    assert sum(runs.values()) >= LEAST
