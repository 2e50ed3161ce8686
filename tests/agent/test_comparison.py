"""Ranks compare what they are at the store of their round, before their first collective."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster import __version__
from trainmaster.contract.wire import Cause, environment, software_differences
from trainmaster.errors import ConfigError
from trainmaster.host import installed_versions
from trainmaster.rank import failure_message, rendezvous, software_comparison

ADDRESS = ("10.0.0.1", 29400)
TORCH = {"torch": "2.13.0"}
RANK = {"TRAINMASTER_JOB": "job", "TRAINMASTER_ROLE": "worker", "TRAINMASTER_INCARNATION": "0"}


class Store:
    """In place of torch's: it keeps values, and counts the requests that it gets."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.requests: list[str] = []
        self.connections: list[dict[str, Any]] = []

    def connect(self, **how: Any) -> Store:
        self.connections.append(how)
        return self

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.requests.append("compare_set")
        assert expected == ""
        return self.values.setdefault(key, desired).encode()


class Ranks:
    """Ranks that join one store, one after the other in this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.store = Store()
        self.told: list[tuple[Cause, str]] = []
        self._patch = patch
        patch.setattr(failure_message, "tell", lambda cause, message, _: self.told.append((cause, message)))

    def join(
        self,
        slot: int,
        versions: dict[str, str] | None = None,
        python: str = "3.11.9",
        *,
        address: tuple[str, int] = ADDRESS,
        own_loop: bool = False,
        own: str = __version__,
        **variables: str,
    ) -> Any:
        """One rank comes to `address`; return what torch's function gives back."""
        patch = self._patch
        patch.setattr(installed_versions, "python_version", lambda: python)
        patch.setattr(software_comparison, "__version__", own)
        for name in software_comparison.PACKAGES:
            patch.delitem(sys.modules, name, raising=False)
        for name, version in (versions or TORCH).items():
            patch.setitem(sys.modules, name, SimpleNamespace(__version__=version))  # type: ignore[arg-type]
        for name in (environment.CONFIG, environment.REVISION):
            patch.delenv(name, raising=False)
        store = {environment.STORE: "10.0.0.1:29400", "MASTER_ADDR": address[0], "MASTER_PORT": str(address[1])}
        for name, value in {**RANK, **store, environment.SLOT: str(slot), **variables}.items():
            patch.setenv(name, value)
        module = SimpleNamespace(
            _torchelastic_use_agent_store=lambda: True,
            _create_c10d_store=lambda *_, **__: "torch's own",
            TCPStore=self.store.connect,
        )
        patch.setitem(sys.modules, "torch.distributed.rendezvous", module)  # type: ignore[arg-type]
        rendezvous.install(own_loop=own_loop)
        return module._create_c10d_store(*address, slot, 2, None, True)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    import multiprocessing.spawn

    monkeypatch.setattr(multiprocessing.spawn, "get_preparation_data", multiprocessing.spawn.get_preparation_data)
    return Ranks(monkeypatch)


def test_equal_ranks_join_with_one_request_each_and_without_the_one_that_counts_them(ranks: Ranks) -> None:
    for slot in range(3):
        assert ranks.join(slot) is ranks.store
    assert ranks.store.requests == ["compare_set"] * 3
    assert [connection["wait_for_workers"] for connection in ranks.store.connections] == [False] * 3


@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        ({}, {"versions": {"torch": "2.15.0"}}, "torch 2.13.0 in job-worker-0-0, 2.15.0 in job-worker-3-0: ranks that"),
        ({}, {"python": "3.12.1"}, "Python 3.11.9 in job-worker-0-0, 3.12.1 in job-worker-3-0: ranks that train"),
        (
            {"TRAINMASTER_CONFIG": "{}", "TRAINMASTER_PROGRAM": "aa"},
            {"TRAINMASTER_CONFIG": "{1}", "TRAINMASTER_PROGRAM": "bb"},
            "config aa in job-worker-0-0, bb in job-worker-3-0: ranks that train together must have the same, so they "
            "do not start; suspend and resume a job after an edit, so that all its pods get the new version",
        ),
        (
            {"TRAINMASTER_PROGRAM": "aa"},
            {"TRAINMASTER_PROGRAM": "bb"},
            "command aa in job-worker-0-0, bb in job-worker-3-0",
        ),
        (
            {"TRAINMASTER_PROGRAM": "aa", "TRAINMASTER_REVISION": "job-6f"},
            {"TRAINMASTER_PROGRAM": "aa", "TRAINMASTER_REVISION": "job-71"},
            "revision job-6f in job-worker-0-0, job-71 in job-worker-3-0: ranks that train together "
            "must have the same, "
            "so they do not start; suspend and resume a job after an edit, so that all its pods get the new version",
        ),
        (
            {},
            {"own": "0.2.0"},
            f"trainmaster {__version__} in job-worker-0-0, 0.2.0 in job-worker-3-0: ranks that train",
        ),
        (
            {"versions": {**TORCH, "lightning": "2.4.0"}},
            {"versions": {"torch": "2.15.0", "lightning": "2.5.0"}},
            "torch 2.13.0 in job-worker-0-0, 2.15.0 in job-worker-3-0; lightning 2.4.0 in job-worker-0-0, 2.5.0 in",
        ),
    ],
    ids=["torch", "Python", "config", "command", "revision", "trainmaster", "framework"],
)
def test_a_script_whose_rank_differs_ends_with_both_pods_and_the_difference_as_its_last_words(
    ranks: Ranks, capsys: pytest.CaptureFixture[str], first: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    ranks.join(0, **first)
    with pytest.raises(SystemExit) as end:
        ranks.join(3, **other)
    assert end.value.code == 2
    ((cause, told),) = ranks.told
    assert cause is Cause.CONFIG_ERROR
    assert told.startswith(words)
    assert capsys.readouterr().err == f"trainmaster: {told}\n"


def test_our_own_loop_gets_an_error_that_it_tells_itself(ranks: Ranks) -> None:
    ranks.join(0, own_loop=True)
    with pytest.raises(ConfigError, match=r"torch 2\.13\.0 in job-worker-0-0, 2\.15\.0 in job-worker-1-0"):
        ranks.join(1, {"torch": "2.15.0"}, own_loop=True)
    assert ranks.told == []


def test_ranks_that_meet_at_an_address_of_the_scripts_own_are_not_compared(ranks: Ranks) -> None:
    ranks.join(0)
    assert ranks.join(1, {"torch": "2.15.0"}, address=("127.0.0.1", 12355)) == "torch's own"
    assert len(ranks.store.requests) == 1


def test_a_framework_that_only_one_rank_has_imported_is_no_difference(ranks: Ranks) -> None:
    ranks.join(0, {**TORCH, "transformers": "4.50.0"})
    assert ranks.join(1) is ranks.store


def test_the_store_holds_one_value_whatever_the_number_of_ranks(ranks: Ranks) -> None:
    for slot in range(5):
        ranks.join(slot)
    (value,) = ranks.store.values.values()
    assert json.loads(value)[0] == "job-worker-0-0"


def test_a_pod_whose_operator_tells_no_revision_has_no_program_to_compare() -> None:
    assert software_differences.program_of({environment.CONFIG: "{}"}) == {}
