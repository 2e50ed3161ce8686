"""Which rule decides, and what it does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, recovered, running, script_spec, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import JobPhase, Restarts


def failing(rules: list[dict[str, Any]], recovery: dict[str, Any] | None = None, **last_words: Any) -> World:
    """A job with rules whose rank 2 has failed."""
    world = running(job_spec(recovery={"rules": rules, **(recovery or {})}))
    world.agent(2, verdict=verdict(2, **last_words))
    world.write()
    return world


def answer(world: World) -> str:
    status = world.status
    if status.phase is not JobPhase.RECOVERING:
        return status.phase.value
    (done,) = [name for name, count in status.restarts.model_dump(exclude={"total"}).items() if count]
    return str(done)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("RestartInPlace", "inPlace"),
        ("ReplacePod", "pod"),
        ("RestartAll", "full"),
        ("RestartWithoutCounting", "free"),
        ("Hold", "Held"),
        ("Fail", "Failed"),
    ],
)
def test_each_action_is_what_it_says(action: str, expected: str) -> None:
    world = failing([{"action": action}])
    assert answer(world) == expected
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rule == "recovery.rules[0]"


def test_without_any_rule_that_fits_the_ladder_decides() -> None:
    world = failing([{"causes": ["Hang"], "action": "Fail"}])
    assert answer(world) == "inPlace"
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rule == ""


@pytest.mark.parametrize(
    ("rule", "last_words", "fits"),
    [
        ({}, {}, True),
        ({"causes": ["OutOfMemory", "Crash"]}, {}, True),
        ({"causes": ["OutOfMemory"]}, {}, False),
        ({"exitCodes": [3, 7]}, {"exit_code": 7}, True),
        ({"exitCodes": [3, 7]}, {"exit_code": 8}, False),
        ({"exitCodes": [137]}, {"exit_code": -9, "signal": "SIGKILL"}, True),
        ({"exitCodes": [9]}, {"exit_code": -9, "signal": "SIGKILL"}, False),
        ({"exitCodes": [1]}, {"exit_code": None}, False),
        ({"message": "NCCL .* timeout"}, {"message": "NCCL operation timeout"}, True),
        ({"message": "NCCL .* timeout"}, {"message": "gloo timeout"}, False),
        ({"message": "^KeyError"}, {"traceback": "Traceback:\n  File\nKeyError: 'x'"}, True),
        ({"message": "core dumped"}, {"last_lines": ["step 4", "Aborted (core dumped)"]}, True),
        ({"causes": ["Crash"], "exitCodes": [7], "message": "broke"}, {"exit_code": 7}, True),
        ({"causes": ["Crash"], "exitCodes": [7], "message": "mended"}, {"exit_code": 7}, False),
    ],
)
def test_a_rule_fits_when_all_that_it_says_does(rule: dict[str, Any], last_words: dict[str, Any], fits: bool) -> None:
    assert (answer(failing([{**rule, "action": "Fail"}], **last_words)) == "Failed") is fits


def test_the_first_rule_that_fits_decides() -> None:
    rules = [
        {"causes": ["Hang"], "action": "Fail"},
        {"name": "flaky", "message": "broke", "action": "ReplacePod"},
        {"action": "Fail"},
    ]
    world = failing(rules)
    assert answer(world) == "pod"
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rule == "flaky"


@pytest.mark.parametrize("pod", [{"phase": "Failed", "reason": "Evicted"}, {"phase": "Failed", "exit_code": 90}, None])
def test_a_rule_without_causes_means_no_eviction(pod: dict[str, Any] | None) -> None:
    world = running(job_spec(recovery={"rules": [{"action": "Fail"}]}))
    if pod is None:
        del world.pods[1]
    else:
        world.pod(1, **pod)
    world.write()
    assert answer(world) == "free"


def test_a_rule_may_name_evictions() -> None:
    world = running(job_spec(recovery={"rules": [{"causes": ["Evicted"], "action": "Hold"}]}))
    world.pod(1, phase="Failed", reason="Evicted", disruption="EvictionByEvictionAPI")
    world.write()
    assert answer(world) == "Held"


def test_a_broken_device_is_never_met_by_a_restart_in_place() -> None:
    assert answer(failing([{"message": "broke", "action": "RestartInPlace"}], cause=Cause.HARDWARE_FAULT)) == "pod"


def test_a_pod_that_ended_is_replaced_whatever_the_rule_says_of_its_ranks() -> None:
    world = running(job_spec(recovery={"rules": [{"causes": ["OutOfMemory"], "action": "RestartInPlace"}]}))
    world.pod(1, phase="Failed", exit_code=137, reason="OOMKilled")
    world.write()
    assert world.status.restarts == Restarts(pod=1)


@pytest.mark.parametrize("cause", [Cause.CONFIG_ERROR, Cause.DATA_ERROR, Cause.DIVERGED])
def test_a_rule_may_restart_what_would_fail_the_job(cause: Cause) -> None:
    assert answer(failing([], cause=cause)) == "Failed"
    assert answer(failing([{"causes": [cause.value], "action": "RestartInPlace"}], cause=cause)) == "inPlace"


def test_a_rule_that_restarts_is_bound_by_the_budget() -> None:
    rules = [{"action": "ReplacePod"}]
    world = running(job_spec(2, recovery={"rules": rules, "budget": {"pod": 2, "full": 1}}))
    for _ in range(10):
        world.agent(1, verdict=verdict(1, round=world.status.round))
        world.write()
        if world.status.phase is JobPhase.FAILED:
            break
        recovered(world, step=0)
    assert world.status.restarts == Restarts(pod=2, full=1)


def test_a_restart_that_counts_nothing_may_be_had_for_ever() -> None:
    world = running(job_spec(2, recovery={"rules": [{"exitCodes": [75], "action": "RestartWithoutCounting"}]}))
    for _ in range(40):
        world.agent(1, verdict=verdict(1, round=world.status.round, exit_code=75))
        world.write()
        recovered(world, step=0)
    assert world.status.restarts == Restarts(free=40)
    assert len(world.status.model_dump_json(exclude_none=True)) < 16_384


def test_a_rule_shrinks_the_job_where_it_may_and_else_the_ladder_decides() -> None:
    rules = {"rules": [{"action": "Shrink"}]}
    small = {"replicas": 4, "min": 2, "ranksPerPod": 1}
    world = running(job_spec(workers=small, recovery=rules))
    world.agent(2, verdict=verdict(2))
    world.write()
    assert (world.status.restarts, world.status.workers.replicas) == (Restarts(shrink=1), 3)
    world = running(job_spec(workers={**small, "min": 4}, recovery=rules))
    world.agent(2, verdict=verdict(2))
    world.write()
    assert world.status.restarts == Restarts(inPlace=1)


def test_a_script_has_rules_too() -> None:
    world = running(script_spec(recovery={"rules": [{"exitCodes": [3], "action": "Fail"}]}))
    world.agent(1, verdict=verdict(1, exit_code=3))
    world.write()
    assert world.status.phase is JobPhase.FAILED
