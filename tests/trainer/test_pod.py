"""Which ranks share a pod's memory: those of the pod, whatever a node is to torchrun."""

from __future__ import annotations

import pytest

from trainmaster.contract.wire import environment
from trainmaster.host import own_pod

NODE = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        (NODE, (3, 4)),
        (
            {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", environment.POD_RANK: "1", environment.RANKS_PER_POD: "2"},
            (1, 2),
        ),
    ],
)
def test_ranks_are_counted_in_their_pod_and_without_an_agent_on_their_node(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[int, int]
) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", environment.POD_RANK, environment.RANKS_PER_POD):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (own_pod.local_rank(), own_pod.size()) == expected
