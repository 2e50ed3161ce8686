"""What users' clusters will see: each object is compared with a file. TRAINMASTER_GOLDEN=write writes them anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.pods import build_pod
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.manifests import (
    PodDefaults,
    PodSecurity,
    build_ca_bundle,
    build_service,
    max_job_name_length,
    pod_name,
)

GOLDEN = Path(__file__).parents[1] / "golden"
LOCAL = PodDefaults("http://127.0.0.1:8443", extra_env={"TRAINMASTER_OUTPUT_DIR": "/out"})
CLUSTER = PodDefaults(
    "https://trainmaster-operator.trainmaster-system.svc:8443",
    trainer_image="trainmaster/trainer:1.2.3",
    agent_image="trainmaster/operator:1.2.3",
    in_cluster=True,
)
OPENSHIFT = replace(CLUSTER, security=PodSecurity(None, None, None, restrict=True))

TRAINING = {"data": {"path": "@stdlib"}, "steps": 100, "batch": {"global": 8}, "parallelism": {"dpShard": 2}}


def job(name: str = "demo", **spec: Any) -> DistributedTrainingJob:
    metadata = {"name": name, "namespace": "team", "uid": "0b5c"}
    return DistributedTrainingJob.model_validate({"metadata": metadata, "spec": spec})


def script(container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **spec: Any) -> Any:
    first = {"name": "main", "command": ["python", "train.py"], **(container or {})}
    template = {"spec": {**(pod or {}), "containers": [first]}}
    return job("script", framework="PyTorch", workers={"replicas": 2, "template": template}, **spec)


SMALLEST = job(training=TRAINING, workers={"replicas": 2})
OWN_IMAGE = {"spec": {"containers": [{"name": "main", "image": "example/derived:1"}]}}

AMOUNTS = {"requests": {"cpu": "4", "memory": "30Gi"}, "limits": {"memory": "32Gi", "nvidia.com/gpu": 1}}
MEMORY = {"spec": {"containers": [{"name": "main", "resources": AMOUNTS}]}}

EVERYTHING = job(
    "everything",
    framework="PyTorch",
    workers={
        "replicas": 12,
        "ranksPerPod": 8,
        "pinning": True,
        "sharedMemory": "64Gi",
        "restartCommand": ["python", "train.py", "--resume"],
        "template": {
            "metadata": {
                "labels": {"team": "vision", "trainmaster.dev/slot": "a lie"},
                "annotations": {"example.com/note": "kept"},
            },
            "spec": {
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 120,
                "enableServiceLinks": True,
                "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ],
                "schedulerName": "another",
                "priorityClassName": "high",
                "runtimeClassName": "nvidia",
                "serviceAccountName": "trainer",
                "imagePullSecrets": [{"name": "registry"}],
                "hostNetwork": True,
                "securityContext": {"supplementalGroups": [1000]},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "initContainers": [{"name": "fetch", "image": "example/fetch:1", "command": ["fetch"]}],
                "containers": [
                    {
                        "name": "main",
                        "image": "example/trainer:1",
                        "command": ["torchrun", "--nproc-per-node=8", "train.py"],
                        "args": ["--epochs", "3"],
                        "workingDir": "/src",
                        "env": [
                            {"name": "HF_HOME", "value": "/cache"},
                            {"name": "TRAINMASTER_SLOT", "value": "99"},
                            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                        ],
                        "resources": {"limits": {"nvidia.com/gpu": 8}},
                        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "terminationMessagePath": "/tmp/last-words",
                    },
                    {"name": "sidecar", "image": "example/sidecar:1", "command": ["run"]},
                ],
            },
        },
    },
    checkpoint={"directory": "/ckpt", "volume": {"hostPath": "/lustre/ckpt"}},
    recovery={"zygote": False},
)

OBJECTS = {
    "pod-smallest": build_pod(SMALLEST, "worker", 1, 0, LOCAL),
    "pod-everything": build_pod(EVERYTHING, "worker", 11, 3, LOCAL),
    "cluster-pod-trainmaster": build_pod(SMALLEST, "worker", 1, 0, CLUSTER),
    "cluster-pod-trainmaster-claim": build_pod(
        job(training=TRAINING, workers={"replicas": 2}, checkpoint={"volume": {"claim": "models"}}),
        *("worker", 0, 2, CLUSTER),
    ),
    "cluster-pod-trainmaster-own-image": build_pod(
        job(training=TRAINING, workers={"replicas": 2, "template": OWN_IMAGE}), "worker", 0, 0, CLUSTER
    ),
    "cluster-pod-trainmaster-ram": build_pod(
        job(
            training=TRAINING,
            workers={"replicas": 2, "template": MEMORY},
            checkpoint={"directory": "/checkpoints", "ram": {"every": 1, "limit": "6Gi"}},
        ),
        *("worker", 0, 0, CLUSTER),
    ),
    "cluster-pod-script": build_pod(script({"image": "python:3.12-slim"}), "worker", 0, 0, CLUSTER),
    "cluster-pod-script-our-image": build_pod(script(), "worker", 0, 0, CLUSTER),
    "cluster-pod-everything": build_pod(EVERYTHING, "worker", 11, 3, CLUSTER),
    "cluster-pod-openshift": build_pod(SMALLEST, "worker", 1, 0, OPENSHIFT),
    "cluster-pod-openshift-script": build_pod(script({"image": "python:3.12-slim"}), "worker", 0, 0, OPENSHIFT),
    "service-smallest": build_service(SMALLEST),
    "config-map-ca": build_ca_bundle("team", "-----BEGIN CERTIFICATE-----\n"),
}


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_an_object_is_as_its_golden_file_says(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("TRAINMASTER_GOLDEN") == "write":
        path.write_text(yaml.safe_dump(OBJECTS[name], sort_keys=False, width=110))
    assert yaml.safe_load(path.read_text()) == OBJECTS[name]


@pytest.mark.parametrize("name", sorted(name for name in OBJECTS if "pod" in name))
def test_no_pod_names_nodes_so_that_karpenter_brings_some(name: str) -> None:
    """It ignores pods whose node affinity names a host or has matchFields, required or preferred."""
    affinity = (yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())["spec"].get("affinity") or {}).get("nodeAffinity")
    assert "kubernetes.io/hostname" not in str(affinity)
    assert "matchFields" not in str(affinity)


def test_every_golden_file_has_its_object() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml") if not path.stem.startswith("chart-")} == set(OBJECTS)


@pytest.mark.parametrize("defaults", [LOCAL, CLUSTER], ids=["local", "cluster"])
def test_a_builder_leaves_the_job_and_the_next_pod_as_they_are(defaults: PodDefaults) -> None:
    before = EVERYTHING.model_dump_json()
    expected = yaml.safe_dump(build_pod(EVERYTHING, "worker", 0, 0, defaults))
    pod = build_pod(EVERYTHING, "worker", 0, 0, defaults)
    emptied(pod)
    assert EVERYTHING.model_dump_json() == before
    assert yaml.safe_dump(build_pod(EVERYTHING, "worker", 0, 0, defaults)) == expected


def emptied(value: Any) -> None:
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        emptied(child)
    if isinstance(value, (dict, list)):
        value.clear()


def test_nothing_of_a_container_is_asked_of_the_local_world() -> None:
    spec = build_pod(EVERYTHING, "worker", 0, 0, LOCAL)["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["data"]
    assert [container["name"] for container in spec["initContainers"]] == ["fetch"]
    assert spec["containers"][0]["command"] == ["python", "-m", "trainmaster.agent"]


@pytest.mark.parametrize(("replicas", "longest"), [(1, 49), (10, 49), (11, 48), (10_000, 46)])
def test_names_of_pods_fit_into_63_characters(replicas: int, longest: int) -> None:
    assert max_job_name_length(replicas) == longest
    assert len(pod_name("j" * longest, "worker", replicas - 1, 9999)) == 63
