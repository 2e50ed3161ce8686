"""torch's promise that an agent serves a store holds for the agent's own address alone."""

from __future__ import annotations

import multiprocessing.spawn
import sys
from types import SimpleNamespace

import pytest

from trainmaster.rank import rendezvous as own_store


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of torch's module, which a rank of an agent has imported."""
    module = SimpleNamespace(_torchelastic_use_agent_store=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", module)  # type: ignore[arg-type]
    monkeypatch.setattr(multiprocessing.spawn, "get_command_line", multiprocessing.spawn.get_command_line)
    for name, value in {"TRAINMASTER_STORE": "10.0.0.1:29400", "MASTER_ADDR": "10.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    own_store.install()
    return module


@pytest.mark.parametrize(("port", "served"), [("29400", True), ("12355", False)])
def test_a_store_is_awaited_only_where_the_agent_serves_one(
    rendezvous: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, port: str, served: bool
) -> None:
    monkeypatch.setenv("MASTER_PORT", port)
    assert rendezvous._torchelastic_use_agent_store() is served


def test_a_spawned_process_learns_it_before_it_runs_anything(rendezvous: SimpleNamespace) -> None:
    words = multiprocessing.spawn.get_command_line(tracker_fd=3, pipe_handle=4)
    code = words[words.index("-c") + 1]
    assert code.index("rendezvous.install()") < code.index("spawn_main(tracker_fd=3, pipe_handle=4)")
