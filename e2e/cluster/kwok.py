"""Nodes that only pretend, for benchmarks: kwok answers for their kubelets, and their pods run nowhere."""

from __future__ import annotations

import json
from typing import Any

from e2e.cluster.control_plane import kubectl
from e2e.cluster.daemons import Daemon
from e2e.cluster.places import BIN, KUBECONFIG
from e2e.cluster.shell import say

KWOK = Daemon("kwok")
_MARK = "kwok.x-k8s.io/node"  # annotation: kwok answers for this node; taint: only pods that tolerate it come here
_LABELS = {"type": "kwok"}
_SELECTOR = "type=kwok"
_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
_CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}


def up(count: int) -> None:
    """Have exactly `count` nodes that pretend. Pods reach them by `nodeSelector: {type: kwok}` and a toleration."""
    stages = [f"--config={BIN / 'kwok-stages' / stage}" for stage in _STAGES]
    KWOK.start(
        [
            BIN / "kwok",
            f"--kubeconfig={KUBECONFIG}",
            *stages,
            f"--manage-nodes-with-annotation-selector={_MARK}=fake",
            "--node-lease-duration-seconds=8",  # below the time after which a silent node counts as lost
        ]
    )
    there = kubectl("get", "nodes", f"--selector={_SELECTOR}", "--output=name").split()
    wanted = {f"node/kwok-{number}" for number in range(count)}
    surplus = sorted(set(there) - wanted)
    if surplus:
        kubectl("delete", "--wait=false", *surplus)
    missing = sorted(wanted - set(there))
    if missing:
        items = [_node(name.removeprefix("node/")) for name in missing]
        kubectl("create", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    if count:
        kubectl("wait", "--for=condition=Ready", "node", f"--selector={_SELECTOR}", "--timeout=120s")
    KWOK.require()
    say(f"{count} nodes of kwok ready")


def down() -> None:
    if KWOK.pid:
        kubectl("delete", "nodes", f"--selector={_SELECTOR}", "--ignore-not-found", "--wait=false")
    KWOK.stop()


def _node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {_MARK: "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {**_LABELS, "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"},
        },
        "spec": {"taints": [{"key": _MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": _CAPACITY, "capacity": _CAPACITY},
    }
