"""Small stand-ins for tests of the runtime."""

from __future__ import annotations

import random
from typing import Any

from trainmaster_operator.cluster.port import JOB
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore


def job(name: str = "job", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": JOB,
        "metadata": {"name": name, "namespace": "space"},
        "spec": {
            "workers": {"replicas": 2},
            "training": {"data": {"path": "/data"}, "steps": 10, "batch": {"global": 2}},
            **spec,
        },
    }


def pod(name: str, owner: dict[str, Any] | None = None, **labels: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": "space", "labels": {"trainmaster.dev/job": "job", **labels}}
    if owner is not None:
        meta["ownerReferences"] = [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def cluster() -> tuple[MemoryStore, MemoryCluster]:
    store = MemoryStore()
    return store, MemoryCluster(store)


def chance() -> random.Random:
    return random.Random(1)
