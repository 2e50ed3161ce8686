"""Signs that places appear for a job whose pods wait: Events of autoscalers, and nodes that join."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runtime.fake_nodes import FakeNodes
from trainmaster_operator.cluster.port import Forbidden, Object, Unavailable
from trainmaster_operator.planning.facts.observation import NewPlaces, PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.nodes import scale_up_signs
from trainmaster_operator.runtime.nodes.scale_up_signs import NewPlacesSeen

KEY = JobKey("space", "job")
NOW = 1_700_000_000.0
NEVER = float("inf")


class Clock:
    time = NOW

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


class Events:
    def __init__(self) -> None:
        self.of: dict[str, list[Object]] = {}
        self.read: list[str] = []
        self.refusal: Exception | None = None

    async def events_about(self, namespace: str, uid: str) -> list[Object]:
        self.read.append(uid)
        if self.refusal is not None:
            raise self.refusal
        return self.of.get(uid, [])


def pod(slot: int, node: str = "", reason: str = "Unschedulable", **fields: Any) -> PodRecord:
    return PodRecord(f"p{slot}", f"uid{slot}", "worker", slot, 0, "Pending", node=node, reason=reason, **fields)


PARTIAL = [pod(0, "n", ""), pod(1), pod(2)]


class Site:
    def __init__(self, nodes: FakeNodes | None = None) -> None:
        self.clock, self.events, self.said = Clock(), Events(), list[str]()
        self.seen = NewPlacesSeen(self.events, self.clock, nodes, self.said.append)  # type: ignore[arg-type]

    def look(self, pods: list[PodRecord] = PARTIAL) -> tuple[bool, float]:
        return asyncio.run(self.seen.look(KEY, pods))

    def say(self, uid: str, reason: str, age_s: float, field: str = "lastTimestamp") -> None:
        self.events.of.setdefault(uid, []).append({"reason": reason, field: rfc3339(self.clock.time - age_s)})


@pytest.mark.parametrize("field", ["lastTimestamp", "eventTime"])
@pytest.mark.parametrize("reason", ["TriggeredScaleUp", "Nominated"])
def test_an_event_of_an_autoscaler_is_a_sign_as_old_as_the_event(reason: str, field: str) -> None:
    site = Site()
    site.say("uid1", reason, 40.0, field)
    site.say("uid1", "FailedScheduling", 1.0, field)
    assert site.look() == (True, scale_up_signs.LOOK_S)
    assert site.seen.seen(KEY) == NewPlaces(asked_s=40.0)
    site.clock.time += 5
    assert site.seen.seen(KEY) == NewPlaces(asked_s=45.0)


def test_pods_are_looked_at_in_turn_and_not_all_at_once() -> None:
    site = Site()
    assert site.look() == (False, scale_up_signs.LOOK_S)
    assert site.look() == (False, scale_up_signs.LOOK_S)
    assert site.events.read == ["uid1"]
    site.clock.time += scale_up_signs.LOOK_S
    site.look()
    assert site.events.read == ["uid1", "uid2"]


@pytest.mark.parametrize(
    "pods", [[pod(1), pod(2)], [pod(0, "n", ""), pod(1, "n", "")], [pod(0, "n", ""), pod(1, "", "SchedulingGated")]]
)
def test_nobody_is_asked_where_nothing_would_be_given_back(pods: list[PodRecord]) -> None:
    site = Site()
    assert site.look(pods) == (False, NEVER)
    assert site.events.read == []
    assert site.seen.seen(KEY) == NewPlaces()


def test_a_node_that_joins_is_a_sign_where_nodes_may_be_listed() -> None:
    nodes = FakeNodes()
    nodes.add("old", created_at=rfc3339(NOW - 10_000))
    site = Site(nodes)
    site.look()
    assert site.seen.seen(KEY).joined_s == 10_000
    nodes.add("new", created_at=rfc3339(NOW + 50))
    site.clock.time += scale_up_signs.NODES_LOOK_S
    assert site.look()[0]
    assert site.seen.seen(KEY).joined_s == 10
    assert nodes.calls == ["list", "list"]
    assert site.said == []


def test_the_missing_right_to_list_nodes_is_said_once() -> None:
    site = Site()
    for _ in range(3):
        site.look()
        site.clock.time += scale_up_signs.NODES_LOOK_S
    assert site.said == [scale_up_signs.MISSING]

    nodes = FakeNodes(refusal=Forbidden("nodes is forbidden"))
    site = Site(nodes)
    for _ in range(30):
        site.look()
        site.clock.time += scale_up_signs.NODES_LOOK_S
    assert site.said == [f"{scale_up_signs.MISSING}: nodes is forbidden"]
    assert len(nodes.calls) == 3  # now and then it is tried again


def test_an_api_server_that_does_not_answer_is_asked_again_later() -> None:
    site = Site()
    site.events.refusal = Unavailable("no answer")
    assert site.look() == (False, scale_up_signs.LOOK_S)
    site.events.refusal = None
    site.say("uid2", "Nominated", 5.0)
    site.clock.time += scale_up_signs.LOOK_S
    assert site.look() == (True, scale_up_signs.LOOK_S)
