"""Objects that a real API server would accept as they are."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.cluster.port import (
    CLAIM,
    CONFIG_MAP,
    EVENT,
    JOB,
    KINDS,
    LEASE,
    POD,
    REVISION,
    SECRET,
    SERVICE,
    Object,
)


def make(kind: str, namespace: str, name: str, labels: dict[str, str] | None = None, **fields: Any) -> Object:
    metadata: Object = {"name": name, "namespace": namespace}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **fields}


def container(**fields: Any) -> Object:
    return {"name": "main", "image": "registry.example/none:1", **fields}


def job(namespace: str, name: str, **spec: Any) -> Object:
    template = {"spec": {"containers": [container(command=["python", "train.py"])]}}
    workers = {"replicas": 2, "template": template}
    return make(JOB, namespace, name, spec={"framework": "PyTorch", "workers": workers, **spec})


def pod(namespace: str, name: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """One that no scheduler touches."""
    unscheduled = {"automountServiceAccountToken": False, "schedulerName": "nobody"}
    fields = {"containers": [container()], **unscheduled, **spec}
    return make(POD, namespace, name, labels, spec=fields)


def service(namespace: str, name: str) -> Object:
    return make(SERVICE, namespace, name, spec={"clusterIP": "None", "ports": [{"port": 29500}]})


def lease(namespace: str, name: str, holder: str = "a") -> Object:
    return make(LEASE, namespace, name, spec={"holderIdentity": holder, "leaseDurationSeconds": 15})


def config_map(
    namespace: str, name: str, data: dict[str, str] | None = None, labels: dict[str, str] | None = None
) -> Object:
    return make(CONFIG_MAP, namespace, name, labels, data=data or {})


def secret(namespace: str, name: str, data: dict[str, str] | None = None) -> Object:
    """`data`: base64."""
    return make(SECRET, namespace, name, data=data or {})


def claim(namespace: str, name: str) -> Object:
    """Of no storage class: nobody makes a volume for it."""
    resources = {"requests": {"storage": "1Mi"}}
    return make(
        CLAIM, namespace, name, spec={"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": resources}
    )


def revision(namespace: str, name: str, **data: Any) -> Object:
    return make(REVISION, namespace, name, revision=1, data=data)


def event(namespace: str, name: str) -> Object:
    involved = {"kind": POD, "apiVersion": "v1", "namespace": namespace, "name": "any"}
    return make(
        EVENT, namespace, name, involvedObject=involved, reason="Tested", message="for people", type="Normal",
        firstTimestamp="2024-01-01T00:00:00Z", lastTimestamp="2024-01-01T00:00:00Z", count=1,
    )  # fmt: skip


def owned_by(obj: Object, owner: Object) -> Object:
    """`obj` with `owner`, an object as stored, as its controller."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}
