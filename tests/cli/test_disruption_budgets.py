"""`trainmaster status` says when a PodDisruptionBudget makes drains wait for a job's pods."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.cli.disruption_budgets import refusals

MINE = {"trainmaster.dev/job": "tiny", "trainmaster.dev/slot": "0"}


def budget(selector: Any, allowed: int = 0) -> dict[str, Any]:
    spec = {} if selector is None else {"selector": selector}
    return {"metadata": {"name": "careful"}, "spec": spec, "status": {"disruptionsAllowed": allowed}}


def pod(phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": "tiny-worker-0-0", "labels": MINE}, "status": {"phase": phase}}


def expression(operator: str, *values: str, key: str = "trainmaster.dev/job") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}


COVERS = {
    "all pods": {},
    "a label": {"matchLabels": {"trainmaster.dev/job": "tiny"}},
    "one of": expression("In", "other", "tiny"),
    "none of": expression("NotIn", "other"),
    "a label that is there": expression("Exists"),
    "a label that is missing": expression("DoesNotExist", key="app"),
}
LEAVES_OUT = {
    "no selector": None,
    "another value": {"matchLabels": {"trainmaster.dev/job": "other"}},
    "one label of two": {"matchLabels": {**MINE, "app": "x"}},
    "one of others": expression("In", "other"),
    "none of these": expression("NotIn", "tiny"),
    "a label that is not there": expression("Exists", key="app"),
    "a label that should be missing": expression("DoesNotExist"),
}


@pytest.mark.parametrize("selector", COVERS.values(), ids=list(COVERS))
def test_a_budget_that_covers_a_running_pod_and_allows_nothing_is_named(selector: Any) -> None:
    (words,) = refusals([budget(selector)], [pod(), pod("Pending")])
    assert words.startswith("Drains wait: PodDisruptionBudget careful allows no eviction now, and covers 1 pod of")


@pytest.mark.parametrize("selector", LEAVES_OUT.values(), ids=list(LEAVES_OUT))
def test_a_budget_of_other_pods_is_not_named(selector: Any) -> None:
    assert refusals([budget(selector)], [pod()]) == []


def test_a_budget_that_allows_an_eviction_is_not_named() -> None:
    assert refusals([budget({}, allowed=1)], [pod()]) == []
    assert refusals([{"metadata": {"name": "new"}, "spec": {"selector": {}}}], [pod("Succeeded")]) == []
