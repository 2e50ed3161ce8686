"""The operator dies before and after each write of each scenario, comes back, and the job ends as if it had not."""

import pytest

from trainmaster_operator.runtime.simulation.crashes import SCENARIOS, crash_matrix


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_crash_at_any_write_changes_nothing_about_the_end(scenario):
    runs = 0
    for name, outcome in crash_matrix(scenario):
        runs += 1
        assert not outcome.violations, "\n".join([name, *outcome.log, *outcome.violations])
    assert runs > 2 * 8
