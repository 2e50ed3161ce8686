"""The end of a cluster, also of one that does not answer."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e.cluster import __main__ as program
from e2e.cluster.shell import ClusterError


def test_a_cluster_whose_api_server_does_not_answer_is_ended_with_its_nodes_of_kwok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose etcd was killed."""
    ended: list[str] = []
    state = tmp_path / "state"
    state.mkdir()

    def ask() -> None:
        raise ClusterError("`kubectl delete nodes` failed: connection refused")

    def ends(name: str) -> SimpleNamespace:
        return SimpleNamespace(down=lambda: ended.append(name))

    monkeypatch.setattr(program, "alone", nullcontext)
    monkeypatch.setattr(program, "STATE", state)
    monkeypatch.setattr(program, "packages", SimpleNamespace(require_root=lambda: None))
    monkeypatch.setattr(program, "kwok", SimpleNamespace(down=ask, KWOK=SimpleNamespace(stop=lambda: None)))
    monkeypatch.setattr(program, "nodes", ends("nodes"))
    monkeypatch.setattr(program, "network", ends("network"))
    plane = SimpleNamespace(API_SERVER=SimpleNamespace(pid=1), ready=lambda: False, **vars(ends("control plane")))
    monkeypatch.setattr(program, "control_plane", plane)
    assert program.main(["down"]) == 0
    assert ended == ["nodes", "control plane", "network"]
    assert not state.exists()
