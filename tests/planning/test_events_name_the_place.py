"""An event about a failure names rank, pod and node."""

from __future__ import annotations

import pytest

from tests.planning.world import World, job_spec, running, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.fault import Fault

PLACE = "(rank 2, pod job-worker-2-0, node n7)"


def of_a_failure(world: World, cause: Cause = Cause.CRASH) -> list[str]:
    world.pod(2, node="n7")
    world.agent(2, verdict=verdict(cause=cause))
    return [event.message for event in world.plan().events]


@pytest.mark.parametrize(
    ("cause", "begins"), [(Cause.CRASH, f"Crash {PLACE}: it broke; the ranks"), (Cause.CONFIG_ERROR, "ConfigError ")]
)
def test_an_event_says_where_it_happened(cause: Cause, begins: str) -> None:
    (message,) = of_a_failure(running(), cause)
    assert message.startswith(begins)
    assert PLACE in message


@pytest.mark.parametrize("action", ["Hold", "Fail", "ReplacePod"])
def test_an_event_says_where_it_happened_whatever_a_rule_does(action: str) -> None:
    rule = {"action": action, "causes": ["Crash"]}
    (message,) = of_a_failure(running(job_spec(recovery={"rules": [rule]})))
    assert message.startswith(f"Crash {PLACE}: ")


@pytest.mark.parametrize(
    ("known", "title"),
    [
        ({}, "NodeLost"),
        ({"rank": 0}, "NodeLost (rank 0)"),
        ({"pod": "p"}, "NodeLost (pod p)"),
        ({"pod": "p", "node": "n"}, "NodeLost (pod p, node n)"),
    ],
)
def test_what_is_not_known_of_the_place_is_left_out(known: dict[str, object], title: str) -> None:
    assert Fault(Cause.NODE_LOST, "words", (0,), **known).title == title  # type: ignore[arg-type]
