"""A rank of XGBoost waits as long as rank 0 prepares its data, and says for what."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from typing import Any

import pytest

from tests.frameworks.test_joining import XGBoostError, be_rank_of_xgboost, broadcast, load
from trainmaster.agent.frameworks import xgboost


def test_a_rank_of_xgboost_waits_for_hours_until_rank_0_has_opened_the_tracker_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_rank_of_xgboost(monkeypatch, 1)
    content = {"config_context": lambda **_: contextlib.nullcontext(), "core": types.SimpleNamespace()}
    content["core"].XGBoostError = XGBoostError
    monkeypatch.setitem(sys.modules, "xgboost", types.SimpleNamespace(**content))
    hours = itertools.count(0, 3600)
    clock = types.SimpleNamespace(monotonic=lambda: float(next(hours)), sleep=lambda _: None)
    monkeypatch.setattr(xgboost, "time", clock)
    tries: list[Any] = []

    def init(**given: Any) -> None:
        tries.append(given)
        if len(tries) < 5:
            raise XGBoostError("Failed to connect to the tracker.\n- Connection refused")

    load(monkeypatch, "XGBoost", "xgboost.collective", init=init, finalize=None, broadcast=broadcast).init()
    assert len(tries) == 5
    said = capsys.readouterr().err
    assert said == (
        "trainmaster: this rank waits for rank 0, which has not entered its CommunicatorContext yet, or can't be "
        "reached at 10.0.0.7:21001\n"
    )
