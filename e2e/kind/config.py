"""What kind is told. It is JSON, which is YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster import cgroups
from e2e.cluster.control_plane import AUDIT_POLICY
from e2e.cluster.shell import write
from e2e.kind.places import API_PORT, AUDIT, AUDIT_LOG, CLUSTER, DOCKER_IP, SHARED, STATE, WORKERS

_POLICY = AUDIT / "policy.json"


def write_policy() -> None:
    write(_POLICY, json.dumps(AUDIT_POLICY, indent=1))


def write_cluster(image: str, *, own_image: bool, own_docker: bool) -> Path:
    networking: dict[str, Any] = {}
    if own_image:
        networking["disableDefaultCNI"] = True  # its image can't be pulled either
    if own_docker:  # in another network namespace
        networking |= {"apiServerAddress": DOCKER_IP, "apiServerPort": API_PORT}
    shared = _mount(str(SHARED))
    nodes = [
        {"role": "control-plane", "image": image, "extraMounts": [shared, _mount(str(AUDIT))]},
        *({"role": "worker", "image": image, "extraMounts": [shared]} for _ in WORKERS),
    ]
    content = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": CLUSTER,
        "networking": networking,
        "kubeadmConfigPatches": [json.dumps(patch) for patch in _patches()],
        "nodes": nodes,
    }
    return write(STATE / "kind.json", json.dumps(content, indent=1))


def _mount(path: str) -> dict[str, str]:
    return {"hostPath": path, "containerPath": path}


def _patches() -> list[dict[str, Any]]:
    audit = {"name": "audit", "hostPath": str(AUDIT), "mountPath": str(AUDIT), "pathType": "DirectoryOrCreate"}
    server = {"audit-policy-file": _POLICY, "audit-log-path": AUDIT_LOG, "audit-log-maxsize": 2048}
    manager = {
        "enable-hostpath-provisioner": "true",  # kind's own argument: a patch replaces the list
        "node-monitor-period": "1s",
        "node-monitor-grace-period": "10s",  # 50 s by default: a test of a lost node would mostly wait
    }
    return [
        {
            "kind": "ClusterConfiguration",
            "apiServer": {"extraArgs": _arguments(server), "extraVolumes": [audit]},
            "controllerManager": {"extraArgs": _arguments(manager)},
        },
        {
            "kind": "KubeletConfiguration",
            **({} if cgroups.unified() else {"failCgroupV1": False}),
            "oomScoreAdj": 0,  # raising it takes a capability that a virtual machine's root may lack
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 4,
        },
        {"kind": "KubeProxyConfiguration", "oomScoreAdj": 0},
    ]


def _arguments(values: dict[str, Any]) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]
