"""Names in a pod template, as Kubernetes knows them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.manifests.test_golden import GOLDEN
from trainmaster_operator.api.validation import unknown_pod_fields


def told(template: Any) -> list[str]:
    return [str(problem) for problem in unknown_pod_fields.problems(template)]


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ({"spec": {"tolerrations": []}}, "spec.tolerrations: unknown field of a pod; did you mean tolerations?"),
        ({"spec": {"node_selector": {}}}, "spec.node_selector: unknown field of a pod; did you mean nodeSelector?"),
        ({"metadata": {"label": {}}}, "metadata.label: unknown field of a pod; did you mean labels?"),
        (
            {"spec": {"containers": [{}, {"resources": {"limit": {"nvidia.com/gpu": 1}}}]}},
            "spec.containers[1].resources.limit: unknown field of a pod; did you mean limits?",
        ),
        ({"spek": {}}, "spek: unknown field of a pod; did you mean spec?"),
        ({"xyz": {}}, "xyz: unknown field of a pod; known here: metadata, spec"),
        (
            {"spec": {"affinity": {"nodeAffinity": {"required": {}}}}},
            "spec.affinity.nodeAffinity.required: unknown field of a pod; known here: "
            "preferredDuringSchedulingIgnoredDuringExecution, requiredDuringSchedulingIgnoredDuringExecution",
        ),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(template: Any, sentence: str) -> None:
    assert told(template) == [f"spec.workers.template.{sentence}"]


def test_names_that_a_person_chooses_are_free() -> None:
    container = {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 8}, "requests": {"example.com/nic": 1}}}
    volume = {"name": "v", "csi": {"driver": "d", "volumeAttributes": {"any thing": "x"}}}
    spec = {"nodeSelector": {"my/label": "x"}, "containers": [container], "volumes": [volume]}
    assert told({"metadata": {"labels": {"a.b/c": "d"}}, "spec": spec}) == []


@pytest.mark.parametrize("template", [None, 3, [], {"spec": None}, {"spec": {"containers": "x"}}])
def test_what_has_another_shape_is_left_to_others(template: Any) -> None:
    assert told(template) == []


@pytest.mark.parametrize("name", ["cluster-pod-everything.yaml", "cluster-pod-script.yaml", "pod-everything.yaml"])
def test_every_field_of_our_own_pods_is_known(name: str) -> None:
    pod = yaml.safe_load((GOLDEN / name).read_text())
    assert told({"metadata": pod["metadata"], "spec": pod["spec"]}) == []


def test_the_refusal_of_an_api_server_is_placed_in_the_jobs_template() -> None:
    message = (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field '
        '"spec.containers[0].resources.limit", unknown field "spec.tolerrations", unknown field "spec.zzz"'
    )
    where = "spec.workers.template.spec"
    first, second, third = (str(problem) for problem in unknown_pod_fields.problems_in(message))
    assert first == f"{where}.containers[0].resources.limit: unknown field of a pod; did you mean limits?"
    assert second == f"{where}.tolerrations: unknown field of a pod; did you mean tolerations?"
    assert third.startswith(f"{where}.zzz: unknown field of a pod; known here: activeDeadlineSeconds, affinity, ")
    assert unknown_pod_fields.problems_in('pods "a" is forbidden: exceeded quota: q') == []
