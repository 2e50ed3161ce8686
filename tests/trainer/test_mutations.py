"""Parity holds the strategies to account: whichever is broken on purpose, its row fails."""

from __future__ import annotations

import pytest

from tests.trainer import mutation_probe
from tests.trainer.ranks import Ranks


@pytest.mark.processes
def test_a_strategy_that_is_broken_on_purpose_fails_its_row(ranks: Ranks) -> None:
    names = ranks.call(mutation_probe.names)
    assert len(names) >= 20
    found = {name: ranks.call(mutation_probe.row, name) for name in names}
    assert {name: row for name, row in found.items() if row["passed"] or "raised" in row} == {}
