"""The control plane of a cluster: what it needs of the machine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from e2e.cluster import control_plane
from e2e.cluster.shell import ClusterError, until


@pytest.mark.parametrize("offset", [0, 1], ids=["for the API server", "for other members"])
def test_a_port_of_etcd_that_another_program_has_is_named(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    def at_once(condition: Callable[[], object], _: float, otherwise: str) -> None:
        until(condition, 0, otherwise)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(control_plane, "ETCD_PORT", port - offset)
        monkeypatch.setattr(control_plane, "ETCD", SimpleNamespace(pid=None, start=lambda _: None))
        monkeypatch.setattr(control_plane, "until", at_once)
        with pytest.raises(ClusterError, match=f"^port {port} is taken by another program"):
            control_plane.start_etcd()
