"""Ranks of XGBoost wait for rank 0 as long as it prepares its data, and rank 0 waits for them unless it has failed."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import sys
import types
from typing import Any

import pytest

from tests.frameworks.test_joining import (
    XGBoostError,
    be_rank_0_of_xgboost,
    be_rank_of_xgboost,
    broadcast,
    load,
    put_in_place_of_xgboost,
)
from trainmaster.agent.frameworks import xgboost


def test_a_rank_of_xgboost_waits_for_hours_until_rank_0_has_opened_the_tracker_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_rank_of_xgboost(monkeypatch, 1)
    put_in_place_of_xgboost(monkeypatch)
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


@pytest.mark.parametrize("error", [ValueError("no such column"), SystemExit(3), KeyboardInterrupt()])
def test_what_fails_in_rank_0_is_known_before_the_others_leave_xgboosts_context(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    done: list[str] = []
    put_in_place_of_xgboost(monkeypatch)
    at_exit: list[tuple[Any, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    module, _ = be_rank_0_of_xgboost(monkeypatch, done)
    with contextlib.suppress(type(error)), contextlib.ExitStack() as context:
        module.init()
        context.callback(module.finalize)
        raise error
    assert done == ["the tracker starts", "joins", "leaves"]
    for function, *words in at_exit:
        function(*words)
    waits = ["the tracker waits"] if isinstance(error, ValueError) else []
    assert done[3:] == waits, "an exception that the script handles ends no rank, so the others need the tracker"


def test_rank_0_waits_in_xgboosts_context_if_it_was_entered_while_an_exception_was_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    put_in_place_of_xgboost(monkeypatch)
    module, _ = be_rank_0_of_xgboost(monkeypatch, done)
    try:
        raise FileNotFoundError("model.json")
    except FileNotFoundError:  # then there is none to go on from
        module.init()
        module.finalize()
    with contextlib.suppress(SystemExit), contextlib.ExitStack() as context:
        module.init()
        context.callback(module.finalize)
        sys.exit()
    assert done == ["the tracker starts", "joins", "leaves", "the tracker waits"] * 2
