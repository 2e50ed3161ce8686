"""A cluster for the commands: the memory store, with jobs and pods as they are put there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from trainmaster_operator.cli.main import main
from trainmaster_operator.cluster.port import JOB, LEASE, POD, NotFound, Object
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.status_mapping import write_status
from trainmaster_operator.runtime.leader.lease import LEASE_LABEL

SPACE = "team-a"


class Cluster(MemoryCluster):
    """What a KubernetesCluster is to the commands. `refuses`: each call ends so; `refuses_pods`: dry runs of pods."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.connection = SimpleNamespace(host="https://k8s.example")
        self.refuses: Exception | None = None
        self.refuses_pods: Exception | None = None
        self.tried: list[Object] = []
        self.asked: dict[str, Any] = {}
        self.budgets: list[Object] | Exception = []

    async def list(self, kind: str, *rest: Any) -> Any:
        if self.refuses:
            raise self.refuses
        return await super().list(kind, *rest)

    async def get(self, kind: str, *rest: Any) -> Object:
        if self.refuses:
            raise self.refuses
        return await super().get(kind, *rest)

    async def create(self, kind: str, obj: Object) -> Object:
        if self.refuses:
            raise self.refuses
        return await super().create(kind, obj)

    async def try_create(self, kind: str, obj: Object) -> None:
        refusal = self.refuses or (self.refuses_pods if kind == POD else None)
        if refusal:
            raise refusal
        self.tried.append(obj)

    async def disruption_budgets(self, namespace: str) -> list[Object]:
        if isinstance(self.budgets, Exception):
            raise self.budgets
        return self.budgets

    async def close(self) -> None:
        """Nothing to close."""


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line.removeprefix("trainmaster: ")


def lead(store: MemoryStore, renewed: str = "2999-01-01T00:00:00.000000Z", holder: str = "operator-0") -> None:
    """Let the cluster's operator have led until `renewed`; by default it leads whenever somebody looks."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 1}
    labels = {LEASE_LABEL: "trainmaster-operator"}
    meta = {"name": "trainmaster-operator", "namespace": "trainmaster-system", "labels": labels}
    try:
        store.update(LEASE, {**store.find(LEASE, meta["namespace"], meta["name"]), "spec": spec})
    except NotFound:
        store.create(LEASE, {"apiVersion": "coordination.k8s.io/v1", "kind": LEASE, "metadata": meta, "spec": spec})


def put(store: MemoryStore, file: Path, name: str = "tiny", now: JobState | None = None) -> Object:
    lead(store)
    job = yaml.safe_load(file.read_text())
    job["metadata"].update(name=name, namespace=SPACE)
    made = store.create(JOB, job)
    return update(store, made, now) if now else made


def update(store: MemoryStore, job: Object, now: JobState) -> Object:
    name = job["metadata"]["name"]
    body = write_status(now)
    return store.update_status(JOB, {**store.find(JOB, SPACE, name), "status": body})


def put_pod(
    store: MemoryStore, job: Object, slot: int, incarnation: int = 0, url: str = "https://o", **state: Any
) -> Object:
    """`url`: where its agent finds the operator."""
    name = f"{job['metadata']['name']}-worker-{slot}-{incarnation}"
    labels = {"job": job["metadata"]["name"], "role": "worker", "slot": str(slot), "incarnation": str(incarnation)}
    owner = {"apiVersion": job["apiVersion"], "kind": JOB, "name": job["metadata"]["name"], "controller": True}
    meta = {
        "name": name,
        "namespace": SPACE,
        "labels": {f"trainmaster.dev/{key}": value for key, value in labels.items()},
        "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}],
    }
    env = [{"name": "TRAINMASTER_OPERATOR_URL", "value": url}]
    spec = {"containers": [{"name": "trainer", "image": "i", "env": env}], "nodeName": f"node-{slot}"}
    made = store.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    state = state or {"running": {}}
    phase = "Running" if "running" in state else "Failed" if "terminated" in state else "Pending"
    body = {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}]}
    return store.update_status(POD, {**made, "status": body})
