"""How new pods keep away from a node that failed the job: by a taint where that is allowed, else by their affinity."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runtime.fake_nodes import FakeNodes
from tests.runtime.fakes import chance, cluster, job
from trainmaster_operator.cluster.port import JOB, POD
from trainmaster_operator.manifests.node_affinity import HOSTNAME
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.planning.facts.node_suspicion import Mark
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.nodes.node_taints import TAINT
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual

PLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}


def run(work: Any, nodes: FakeNodes | None) -> None:
    """An operator to whom node "bad" is suspect, over a store with one job of two pods that nobody places."""

    async def main() -> None:
        store, memory = cluster()
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
        settings = Settings(
            operator_url="https://o",
            identity="me",
            lease=LeaseSettings(takeover=True),
            pods=PodDefaults("https://o", in_cluster=True),
            judge_nodes=True,
            taint_nodes=True,
        )
        operator = Operator(memory, clock, chance(), settings, nodes=nodes)
        assert operator.ledger is not None
        operator.ledger._add(("bad", Mark(f"m{n}", "other", "HardwareFault", clock.now())) for n in range(2))
        operator.ledger._refresh(10)
        operator.ledger._counted_at = float("inf")
        running = asyncio.create_task(operator.run())
        store.create(JOB, job())
        await work(store, operator)
        operator.stop()
        await asyncio.wait([running], timeout=60)
        assert running.done()

    run_virtual(main())


async def created(store: Any, count: int = 2) -> list[dict[str, Any]]:
    while len(found := store.list(POD).items) < count:
        await asyncio.sleep(0.1)
    return list(found)


def affinities(pods: list[dict[str, Any]]) -> str:
    return str([pod["spec"].get("affinity") for pod in pods])


def test_with_the_right_the_node_is_tainted_before_the_first_pod_and_no_pod_names_it() -> None:
    nodes = FakeNodes()
    nodes.add("bad")

    async def work(store: Any, operator: Operator) -> None:
        pods = await created(store)
        assert nodes.taints("bad") == (TAINT,)
        assert affinities(pods) == "[None, None]"

    run(work, nodes)


@pytest.mark.parametrize("gone", [True, False], ids=["no right", "a node that is gone"])
def test_without_the_right_pods_name_the_node_until_one_of_them_finds_no_place(gone: bool) -> None:
    async def work(store: Any, operator: Operator) -> None:
        pods = await created(store)
        assert (HOSTNAME in affinities(pods)) is gone
        if not gone:
            return
        for pod in pods:
            store.update_status(POD, {**pod, "status": {**(pod.get("status") or {}), "conditions": [PLACED]}})
        while {pod["metadata"]["labels"]["trainmaster.dev/incarnation"] for pod in store.list(POD).items} != {"1"}:
            await asyncio.sleep(0.1)
        assert HOSTNAME not in affinities(await created(store))

    run(work, None if gone else FakeNodes())
