"""What users' clusters will see: each object is compared with a file. TRAINMASTER_GOLDEN=write writes them anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster_operator.api.job import DistributedTrainingJob
from trainmaster_operator.manifests import build_pod, build_service, max_job_name_length, pod_name

GOLDEN = Path(__file__).parents[1] / "golden"
URL = "http://127.0.0.1:8443"

TRAINING = {"data": {"path": "@stdlib"}, "steps": 100, "batch": {"global": 8}, "parallelism": {"dp_shard": 2}}


def job(name: str = "demo", **spec: Any) -> DistributedTrainingJob:
    metadata = {"name": name, "namespace": "team", "uid": "0b5c"}
    return DistributedTrainingJob.model_validate({"metadata": metadata, "spec": spec})


SMALLEST = job(training=TRAINING, workers={"replicas": 2})

EVERYTHING = job(
    "everything",
    framework="PyTorch",
    workers={
        "replicas": 12,
        "ranksPerPod": 8,
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
                    },
                    {"name": "sidecar", "image": "example/sidecar:1", "command": ["run"]},
                ],
            },
        },
    },
    checkpoint={"directory": "/ckpt"},
    recovery={"zygote": False},
)

OBJECTS = {
    "pod-smallest": build_pod(SMALLEST, "worker", 1, 0, operator_url=URL),
    "pod-everything": build_pod(
        EVERYTHING, "worker", 11, 3, operator_url=URL, extra_env={"TRAINMASTER_OUTPUT_DIR": "/out"}
    ),
    "service-smallest": build_service(SMALLEST),
}


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_an_object_is_as_its_golden_file_says(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("TRAINMASTER_GOLDEN") == "write":
        path.write_text(yaml.safe_dump(OBJECTS[name], sort_keys=False, width=110))
    assert yaml.safe_load(path.read_text()) == OBJECTS[name]


def test_a_builder_leaves_the_job_as_it_is() -> None:
    before = EVERYTHING.model_dump_json()
    pod = build_pod(EVERYTHING, "worker", 0, 0, operator_url=URL)
    pod["spec"]["containers"][0]["env"].clear()
    pod["spec"]["containers"][1]["image"] = "changed"
    assert EVERYTHING.model_dump_json() == before


@pytest.mark.parametrize(("replicas", "longest"), [(1, 49), (10, 49), (11, 48), (10_000, 46)])
def test_names_of_pods_fit_into_63_characters(replicas: int, longest: int) -> None:
    assert max_job_name_length(replicas) == longest
    assert len(pod_name("j" * longest, "worker", replicas - 1, 9999)) == 63
