"""What an agent reads from its pod's environment, and gives to its ranks."""

from __future__ import annotations

import os

import pytest

from trainmaster.agent.settings import Settings, rank_environment
from trainmaster.contract.wire import Assignment, StoreAddress, environment

POD = {
    environment.JOB_UID: "0b5c",
    environment.NAMESPACE: "team",
    environment.JOB: "demo",
    environment.ROLE: "worker",
    environment.SLOT: "1",
    environment.INCARNATION: "0",
    environment.POD_UID: "77aa",
    environment.OPERATOR_URL: "https://operator:8443",
}
CORES = 8


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CORES)))


def threads(env: dict[str, str], ranks: int = 1, world_size: int = 4, store: str = "10.0.0.7") -> str:
    settings = Settings.read({**POD, **env})
    assignment = Assignment(
        round=1,
        store=StoreAddress(store, 29500),
        first_rank=ranks,
        ranks=ranks,
        world_size=world_size,
        group_rank=1,
        group_world_size=world_size // ranks,
        restart_count=0,
    )
    variables = rank_environment(settings, assignment, 0)
    assert environment.CPU_MILLIS not in variables
    return variables["OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    ("millis", "ranks", "expected"),
    [("250", 1, "1"), ("4000", 1, "4"), ("2500", 1, "3"), ("4000", 2, "2"), ("6000", 4, "1"), ("64000", 1, "8")],
)
def test_ranks_have_as_many_threads_as_their_pod_has_cores(millis: str, ranks: int, expected: str) -> None:
    assert threads({environment.CPU_MILLIS: millis}, ranks) == expected


def test_ranks_of_a_pod_without_amounts_share_the_node_and_those_of_one_machine_all_of_it() -> None:
    assert threads({}, ranks=2) == "4"
    assert threads({}, ranks=1, world_size=4, store="127.0.0.1") == "2"


def test_what_the_user_says_counts() -> None:
    assert threads({environment.CPU_MILLIS: "4000", "OMP_NUM_THREADS": "7"}) == "7"


def test_an_amount_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=f"{environment.CPU_MILLIS}='much': a whole number is expected"):
        threads({environment.CPU_MILLIS: "much"})


def test_a_pinned_rank_has_no_more_threads_than_cpus() -> None:
    settings = Settings.read({**POD, environment.PINNING: "1"})
    assignment = Assignment(
        round=1,
        store=StoreAddress("10.0.0.7", 29500),
        first_rank=0,
        ranks=2,
        world_size=2,
        group_rank=0,
        group_world_size=1,
        restart_count=0,
    )
    variables = rank_environment(settings, assignment, 1, cpus=[2, 6])
    assert variables["OMP_NUM_THREADS"] == "2"
    assert variables[environment.CPUS] == "2,6"
    assert environment.PINNING not in variables
    assert environment.CPUS not in rank_environment(settings, assignment, 1)
