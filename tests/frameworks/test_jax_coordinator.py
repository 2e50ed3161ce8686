"""Where JAX opens its coordinator, and where its ranks look for it, if a script names an address."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.test_joining import be_rank, load
from trainmaster.agent.frameworks import jax

OURS = "10.0.0.7:21001"


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        ((None, 2, 0), (None, None)),
        ((OURS, 2, 0), (OURS, None)),
        (("10.0.0.7:12377", 2, 0), ("10.0.0.7:12377", "[::]:12377")),
        (("10.0.0.7:12377", 2, 0, "10.0.0.7:12377"), ("10.0.0.7:12377", "10.0.0.7:12377")),
        (("10.0.0.7:29500", 2, 0), (OURS, None)),
        (("10.0.0.7:29500", 2, 0, "0.0.0.0:29500"), (OURS, None)),
        (("[fd00::7]:29500", 2, 0), ("[fd00::7]:29500", "[::]:29500")),
    ],
)
def test_jax_opens_its_coordinator_where_the_ranks_look_for_it(
    monkeypatch: pytest.MonkeyPatch, given: tuple[Any, ...], opened: tuple[str | None, str | None]
) -> None:
    be_rank(monkeypatch, "JAX")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", OURS)
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", OURS)
    called: list[tuple[str | None, str | None]] = []

    class State:
        def initialize(
            self,
            coordinator_address: str | None = None,
            num_processes: int | None = None,
            process_id: int | None = None,
            coordinator_bind_address: str | None = None,
        ) -> None:
            assert (num_processes, process_id) == (2, 0)
            called.append((coordinator_address, coordinator_bind_address))

    module = load(monkeypatch, "JAX", "jax._src.distributed", State=State)
    module.State().initialize(*given)
    names = ("coordinator_address", "num_processes", "process_id", "coordinator_bind_address")
    module.State().initialize(**dict(zip(names, given, strict=False)))
    assert called == [opened] * 2


@pytest.mark.parametrize("address", ["fd00::7:29500", "[fd00::7]:29500"])
def test_the_address_of_the_store_is_also_known_as_one_of_ipv6(address: str) -> None:
    env = {"MASTER_ADDR": "fd00::7", "MASTER_PORT": "29500", jax.COORDINATOR: "[fd00::7]:21001"}
    assert jax.coordinator(address, None, env) == ("[fd00::7]:21001", None)


def test_a_rank_that_does_not_open_jaxs_coordinator_keeps_the_scripts_address() -> None:
    env = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500", jax.COORDINATOR: OURS}
    assert jax.coordinator("10.0.0.7:12377", None, env) == ("10.0.0.7:12377", None)


def test_jaxs_coordinator_is_opened_where_a_script_has_set_the_variable_of_its_address() -> None:
    env = {jax.COORDINATOR: "10.0.0.7:12377", jax.BIND: OURS}
    assert jax.coordinator(None, None, env) == (None, "[::]:12377")
