"""Nodes that vanish, lose their network, or are drained."""

from __future__ import annotations

import json

import pytest

from e2e.installation import NAMESPACE
from e2e.kube import Object
from e2e.machine import Machine
from e2e.test_failures import assert_one_curve
from e2e.world import World
from trainmaster_operator.runtime.nodes import node_health as ledger

pytestmark = pytest.mark.exclusive


def spread(world: World, machine: Machine, avoid: bool = True, **more: object) -> Object:
    """A job whose two pods lie on two nodes, neither of them the one that can't be lost. `avoid`: nodes that lost its
    pods, and those that lost others' before."""
    apart = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"trainmaster.dev/job": "job"}},
                    },
                }
            ]
        },
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 50,
                    "preference": {
                        "matchExpressions": [
                            {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [machine.steady]}
                        ]
                    },
                }
            ]
        },
    }
    return world.training(template={"affinity": apart}, recovery={"nodes": {"avoid": avoid}}, **more)


def on_a_losable_node(world: World, machine: Machine) -> int:
    """The slot of a pod that isn't on the node that can't be lost."""
    for slot in (1, 0):
        if world.node_of(world.pod(slot)) != machine.steady:
            return slot
    raise AssertionError(f"both pods are on {machine.steady}")


def test_a_lost_node(world: World, machine: Machine) -> None:
    world.submit(spread(world, machine, steps=300))
    world.wait_step(30)
    slot = on_a_losable_node(world, machine)
    node = world.node_of(world.pod(slot))
    machine.lose(node)
    try:
        status = world.succeeded(limit_s=240)
    finally:
        machine.heal(node)
    assert status["recoveries"][-1]["pod"] == world.pod(slot)
    assert world.node_of(world.pod(slot, 1)) != node
    assert_one_curve(world, 300)

    reason = world.job()["metadata"]["uid"][:8]

    def known(suspicion: Object | None) -> bool:
        """This job's reason: jobs of other tests have failed on the node, too."""
        nodes = json.loads(((suspicion or {}).get("data") or {}).get(ledger.KEY, "{}"))
        return any(job == reason for _, job, *_ in nodes.get(node, {}).get("marks", []))

    world.kube.wait("ConfigMap", ledger.NAME, NAMESPACE, known, f"{node} is suspect because of this job", 60)


def test_a_partitioned_node_whose_ranks_go_on_is_fenced(world: World, machine: Machine) -> None:
    """Old and new ranks write into one folder: one lineage, one loss curve."""
    world.submit(spread(world, machine, steps=300, every=10))
    world.wait_step(30)
    slot = on_a_losable_node(world, machine)
    node = world.node_of(world.pod(slot))
    machine.partition(node)
    try:
        world.wait_step(150, limit_s=240)
    finally:
        machine.heal(node)
    status = world.succeeded()
    rounds = [int(path.stem.removeprefix("round-")) for path in (world.folder / "lineage").glob("round-*.json")]
    assert max(rounds) == status["round"] > 1
    assert_one_curve(world, 300)


def test_a_drained_node_loses_no_step(world: World, machine: Machine) -> None:
    # Where only two nodes take pods, the other one may be suspect by now, and then no place would be left.
    world.submit(spread(world, machine, avoid=False, steps=250, every=100))
    world.wait_step(30)
    slot = on_a_losable_node(world, machine)
    node = world.node_of(world.pod(slot))
    try:
        world.kube.kubectl(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector", "trainmaster.dev/job=job"
        )
        status = world.succeeded()
    finally:
        world.kube.kubectl("uncordon", node)
    assert [r["lostSteps"] for r in status["recoveries"]] == [0]
    assert status["restarts"]["total"] == 0
    assert world.node_of(world.pod(slot, 1)) != node
    assert_one_curve(world, 250)
