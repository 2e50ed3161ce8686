"""The benchmark of the control channel at toy size: two real operators, and a few simulated agents over TLS."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks import fleet
from benchmarks.record import Case


@pytest.mark.processes
def test_a_few_agents_go_through_all_that_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "SETTLE_S", 0.05)
    monkeypatch.setattr(fleet, "REST_S", 0.05)
    cases = {case.case: case for case in asyncio.run(fleet.one_job(2, 1))}
    for what in (
        "all join for the first time",
        "a rank dies",
        "a rank dies, all behind it",
        "every connection breaks",
        "the leader is told to end",
    ):
        assert cases[f"{what}, p50"].median > 0
        assert cases[f"{what}, max"].median >= cases[f"{what}, p50"].median
    assert cases["the leader's memory"].median > 1
    assert cases["status"].median > 100


def test_goals_that_are_missed_are_named() -> None:
    cases = [Case("a rank dies, p99", "1000 agents", "s", [0.5, 1.5]), Case("status", "1000 agents", "bytes", [100.0])]
    assert fleet.failed(cases, 1000) == ["1000 agents: a rank dies, p99: 1.50 > 1.0"]
    assert fleet.failed(cases[1:], 1000) == []
