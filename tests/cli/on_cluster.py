"""A cluster for the commands: the memory store, with jobs and pods as they are put there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from trainmaster_operator.cli.main import main
from trainmaster_operator.cluster.port import JOB, POD, Object
from trainmaster_operator.local.memory_cluster import MemoryCluster
from trainmaster_operator.local.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.status_mapping import write_status

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

    async def close(self) -> None:
        """Nothing to close."""


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line.removeprefix("trainmaster: ")


def put(store: MemoryStore, file: Path, name: str = "tiny", now: JobState | None = None) -> Object:
    job = yaml.safe_load(file.read_text())
    job["metadata"].update(name=name, namespace=SPACE)
    made = store.create(JOB, job)
    return update(store, made, now) if now else made


def update(store: MemoryStore, job: Object, now: JobState) -> Object:
    name = job["metadata"]["name"]
    body = write_status(now)
    return store.update_status(JOB, {**store.find(JOB, SPACE, name), "status": body})


def put_pod(store: MemoryStore, job: Object, slot: int, incarnation: int = 0, **state: Any) -> Object:
    name = f"{job['metadata']['name']}-worker-{slot}-{incarnation}"
    labels = {"job": job["metadata"]["name"], "role": "worker", "slot": str(slot), "incarnation": str(incarnation)}
    owner = {"apiVersion": job["apiVersion"], "kind": JOB, "name": job["metadata"]["name"], "controller": True}
    meta = {
        "name": name,
        "namespace": SPACE,
        "labels": {f"trainmaster.dev/{key}": value for key, value in labels.items()},
        "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}],
    }
    spec = {"containers": [{"name": "trainer", "image": "i"}], "nodeName": f"node-{slot}"}
    made = store.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    state = state or {"running": {}}
    phase = "Running" if "running" in state else "Failed" if "terminated" in state else "Pending"
    body = {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}]}
    return store.update_status(POD, {**made, "status": body})
