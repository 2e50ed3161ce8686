"""What a run keeps: its name says what it holds, and pods are made from it whatever was edited or upgraded since."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.manifests.test_golden import CLUSTER, TRAINING
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.manifests import PodDefaults, fill_pod, render_pod
from trainmaster_operator.manifests.controller_revision import (
    Revision,
    TooLarge,
    build_revision,
    effective,
    read_revision,
    revision_of,
    same_run,
)

CPU = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
SPEC: dict[str, Any] = {
    "training": TRAINING,
    "workers": {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", **CPU}]}}},
}
UPGRADED = replace(CLUSTER, trainer_image="trainmaster/trainer:2.0.0", agent_image="trainmaster/operator:2.0.0")


def job(spec: dict[str, Any]) -> DistributedTrainingJob:
    metadata = {"name": "demo", "namespace": "team", "uid": "0b5c", "generation": 3}
    return DistributedTrainingJob.model_validate({"metadata": metadata, "spec": spec})


def kept(spec: dict[str, Any] = SPEC, defaults: PodDefaults = CLUSTER, collisions: int = 0) -> Revision:
    return revision_of(job(spec), spec, lambda of: render_pod(of, "worker", defaults), collisions)


def with_training(**fields: Any) -> dict[str, Any]:
    return {**SPEC, "training": {**TRAINING, **fields}}


def with_container(**fields: Any) -> dict[str, Any]:
    return {**SPEC, "workers": {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", **fields}]}}}}


def obeyed(revision: Revision, spec: dict[str, Any], defaults: PodDefaults = CLUSTER) -> dict[str, Any]:
    run = effective(revision, job(spec), spec, lambda of: render_pod(of, "worker", defaults), 2)
    return fill_pod(run.pod, 1, 2, defaults)


@pytest.mark.parametrize(
    "spec",
    [
        {**SPEC, "suspend": True},
        {**SPEC, "recovery": {"budget": {"pod": 1}}},
        {**SPEC, "workers": {**SPEC["workers"], "replicas": 4, "spares": 1}},
        with_container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}),
        with_container(),
    ],
    ids=str,
)
def test_live_fields_are_no_part_of_the_name(spec: dict[str, Any]) -> None:
    assert kept(spec).name == kept().name
    assert same_run(kept(spec), kept())


@pytest.mark.parametrize(
    "other",
    [
        kept(with_training(optimizer={"lr": 0.5})),
        kept(with_container(image="mine:1", **CPU)),
        kept(defaults=UPGRADED),
        kept({**SPEC, "recovery": {"zygote": False}}),
    ],
)
def test_what_ranks_share_is_part_of_the_name(other: Revision) -> None:
    assert other.name != kept().name
    assert not same_run(other, kept())


def test_the_operators_address_is_no_part_of_what_a_run_keeps() -> None:
    moved = replace(CLUSTER, operator_url="https://elsewhere:8443")
    assert kept(defaults=moved) == kept()
    (url,) = [v["value"] for v in _main(obeyed(kept(), SPEC, moved))["env"] if v["name"] == "TRAINMASTER_OPERATOR_URL"]
    assert url == "https://elsewhere:8443"


def test_a_taken_name_gets_a_number() -> None:
    assert kept(collisions=2).name == f"{kept().name}-2"


def test_the_object_belongs_to_the_job_and_holds_all_of_it() -> None:
    made = build_revision(job(SPEC), kept())
    assert made["metadata"]["ownerReferences"][0]["uid"] == "0b5c"
    assert made["metadata"]["labels"] == {"trainmaster.dev/job": "demo"}
    assert made["revision"] == 3
    assert read_revision(json.loads(json.dumps(made))) == kept()


def test_a_job_that_is_too_large_to_be_kept_is_refused_in_a_sentence() -> None:
    large = with_container(env=[{"name": "TEXT", "value": "x" * 600_000}])
    with pytest.raises(TooLarge, match=r"^spec takes 1\.2 MB .* and 1 MB can be kept for a run: put long texts"):
        build_revision(job(large), kept(large))


def test_a_pod_is_made_from_what_the_run_keeps_after_an_edit_and_an_upgrade() -> None:
    before = fill_pod(kept().pod, 1, 2, CLUSTER)
    edited = {**with_training(optimizer={"lr": 0.5}), "checkpoint": {"directory": "/elsewhere"}}
    assert obeyed(kept(), edited, UPGRADED) == before
    assert _main(before)["image"] == "trainmaster/trainer:1.2.3"


def test_new_cpu_and_memory_reach_pods_that_are_made_after_an_edit_that_waits() -> None:
    edited = {
        **with_container(image="mine:1", resources={"limits": {"cpu": "3"}}),
        "training": {**TRAINING, "optimizer": {"lr": 0.5}},
    }
    main = _main(obeyed(kept(), edited, UPGRADED))
    assert main["image"] == "trainmaster/trainer:1.2.3"
    assert main["resources"] == {"limits": {"cpu": "3"}}
    (cores,) = [v for v in main["env"] if v["name"] == "TRAINMASTER_CPU_MILLIS"]
    assert cores["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"


def test_braces_of_a_template_stay_as_they_are() -> None:
    spec = with_container(env=[{"name": "FORMAT", "value": "{slot}"}], workingDir="/{incarnation}")
    main = _main(obeyed(kept(spec), spec))
    assert main["workingDir"] == "/{incarnation}"
    assert {"name": "FORMAT", "value": "{slot}"} in main["env"]
    assert {"name": "TRAINMASTER_SLOT", "value": "1"} in main["env"]
    assert {"name": "TRAINMASTER_INCARNATION", "value": "2"} in main["env"]


def test_a_pod_names_its_revision_to_people_and_to_its_ranks() -> None:
    pod = fill_pod(kept().pod, 1, 2, CLUSTER, revision="demo-1")
    assert pod["metadata"]["labels"]["trainmaster.dev/revision"] == "demo-1"
    assert {"name": "TRAINMASTER_REVISION", "value": "demo-1"} in _main(pod)["env"]
    without = fill_pod(kept().pod, 1, 2, CLUSTER)
    assert "trainmaster.dev/revision" not in without["metadata"]["labels"]
    assert "TRAINMASTER_REVISION" not in {variable["name"] for variable in _main(without)["env"]}


def _main(pod: dict[str, Any]) -> dict[str, Any]:
    main: dict[str, Any] = pod["spec"]["containers"][0]
    return main
