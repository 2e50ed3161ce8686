"""Ranks at their agent's store, with torch's own functions."""

from __future__ import annotations

import importlib
import multiprocessing.spawn

import pytest
import torch
import torch.distributed as dist

from trainmaster.contract.wire import environment
from trainmaster.rank import rendezvous as own_store
from trainmaster.rank import software_comparison

rendezvous = importlib.import_module("torch.distributed.rendezvous")  # a function of torch.distributed has its name


def requests_of_a_rank(store: dist.TCPStore) -> int:
    """One rank meets the others by its environment: how many keys that leaves in the store, one for each request."""
    before = store.num_keys()
    next(rendezvous.rendezvous("env://"))
    return store.num_keys() - before


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.TCPStore:
    """An agent's store. What is corrected in torch is put back after the test."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": "0", "WORLD_SIZE": "2"}
    agents = {environment.STORE: f"127.0.0.1:{store.port}", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in {**address, **agents}.items():
        monkeypatch.setenv(name, value)
    for module, name in (
        (rendezvous, "_torchelastic_use_agent_store"),
        (rendezvous, "_create_c10d_store"),
        (dist.distributed_c10d, "_update_default_pg"),
        (multiprocessing.spawn, "get_preparation_data"),
        (own_store, "_worlds_ended"),
        (own_store, "_is_at_agents_store"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    return store


def test_a_world_that_a_script_begins_after_another_one_does_not_read_what_that_one_has_written(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks would connect to addresses that nobody answers any more."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    own_store.install()
    written = []
    for _ in range(3):
        before = store.num_keys()
        dist.init_process_group("gloo")
        dist.destroy_process_group()
        written.append(store.num_keys() - before)
    assert written[1] == written[2] == written[0] - 1 > 0, "the first rank alone also writes its software"


def test_a_world_of_one_rank_alone_does_not_count_among_the_worlds_that_all_ranks_have_ended(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks know nothing of it: they would look for the next world under another name."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    own_store.install()
    for alone in (False, True, False):
        elsewhere = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}
        dist.init_process_group("gloo", **elsewhere)
        dist.destroy_process_group()
    assert own_store._worlds_ended == 2


def test_the_comparison_costs_a_rank_no_request_more_than_torch_alone(store: dist.TCPStore) -> None:
    alone = requests_of_a_rank(store)
    own_store.install()
    assert requests_of_a_rank(store) == alone == 1
    assert torch.__version__.encode() in store.get(software_comparison.KEY)
