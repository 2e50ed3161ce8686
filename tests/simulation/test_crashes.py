"""The operator dies before and after each write of each scenario, comes back, and the job ends as if it had not."""

from __future__ import annotations

import pytest

from tests.simulation.told import told
from trainmaster_operator.runtime.simulation.crashes import SCENARIOS, crash_matrix, crashed

LEAST = 2_000
runs: dict[str, int] = {}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_crash_at_any_write_changes_nothing_about_the_end(scenario):
    for name, outcome in crash_matrix(scenario):
        runs[scenario.name] = runs.get(scenario.name, 0) + 1
        assert not outcome.violations, f"{name}\n{told(outcome)}"
    assert runs[scenario.name] > 2 * 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_is_forked_off_is_the_same_as_one_from_the_begin(when):
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "pod replacement")
    outcomes = dict(crash_matrix(scenario))
    forked = next(outcome for name, outcome in outcomes.items() if f"dies {when} write 8 of" in name)
    assert forked.log == crashed(scenario, 8, when).log


def test_the_matrix_is_large():
    if len(runs) < len(SCENARIOS):
        pytest.skip("not all of it ran")
    assert sum(runs.values()) >= LEAST
