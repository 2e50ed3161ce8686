"""What end-to-end tests do to the operator's replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from e2e.installation import Installation
from e2e.kube import Kube, Object


class Deployed:
    """A cluster whose operator has two replicas, and an older one that is still ending."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fails = False

    def get(self, *_: Any) -> Object:
        return {"spec": {"replicas": self.asked[-1] if self.asked else 2}}

    def list(self, *_: Any) -> list[Object]:
        ending = {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"}
        return [{"metadata": meta} for meta in ({"name": "a"}, {"name": "b"}, ending)]

    def scale(self, _: str, __: str, replicas: int) -> None:
        self.asked.append(replicas)

    def wait(self, *_: Any) -> str:
        if self.fails and not self.asked[-1]:
            raise AssertionError("not within 120 s")
        return "a"


def test_a_stopped_operator_gets_as_many_replicas_again_as_it_had_and_none_for_one_that_was_ending() -> None:
    kube = Deployed()
    with Installation(cast(Kube, kube), Path("helm")).stopped():
        assert kube.asked == [0]
    assert kube.asked == [0, 2]


def test_an_operator_that_does_not_stop_in_time_gets_its_replicas_again() -> None:
    kube = Deployed()
    kube.fails = True
    with pytest.raises(AssertionError, match="not within"), Installation(cast(Kube, kube), Path("helm")).stopped():
        pass
    assert kube.asked == [0, 2]
