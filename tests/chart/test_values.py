from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from charts import generate
from charts.generate import CHART, Value, read_values
from tests.chart.rendering import EVERYTHING, argument, operator_pod, render

LEAVES = {
    ".".join(leaf.path): leaf for top in read_values((CHART / "values.yaml").read_text()) for leaf in top.leaves()
}

STRINGS = {"a": "b"}
OTHER: dict[str, Any] = {
    "#/definitions/strings": STRINGS,
    "#/definitions/digest": f"sha256:{'0' * 64}",
    "#/definitions/duration": "7h",
    "#/definitions/intOrPercent": "30%",
    "#/definitions/resources": {"requests": {"cpu": 7}},
    "#/definitions/probe": {"periodSeconds": 7},
    "imagePullSecrets": [{"name": "other"}],
    "extraArgs": ["--other"],
    "extraEnv": [{"name": "OTHER", "value": "1"}],
    "podSecurityContext": {"fsGroup": 7},
    "securityContext": {"runAsUser": 7},
    "tolerations": [{"key": "other", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [],
    "metrics.serviceMonitor.relabelings": [{"action": "labeldrop", "regex": "x"}],
    "metrics.serviceMonitor.metricRelabelings": [{"action": "labeldrop", "regex": "x"}],
    "metrics.readers": [{"name": "other", "namespace": "elsewhere"}],
    "metrics.prometheusRule.runbookUrl": "https://wiki/other",
    "networkPolicy.agentsFrom": [{"podSelector": {}}],
    "networkPolicy.metricsFrom": [{"podSelector": {}}],
}
"""Allowed values that aren't the default, where the type alone doesn't give one away."""


@pytest.mark.parametrize("name", LEAVES)
def test_every_value_is_obeyed(name: str) -> None:
    values = copy.deepcopy(EVERYTHING)
    *parents, last = LEAVES[name].path
    place = values
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = _other(name, LEAVES[name], place.get(last, LEAVES[name].default))
    assert _texts(values) != _texts(EVERYTHING)


def _other(name: str, leaf: Value, now: Any) -> Any:
    schema = leaf.schema or {}
    if name in OTHER:
        return OTHER[name]
    if "$ref" in schema:
        return OTHER[schema["$ref"]]
    if "enum" in schema:
        return next(choice for choice in schema["enum"] if choice != now)
    if isinstance(now, bool):
        return not now
    if isinstance(now, int):
        return now + 1
    assert isinstance(now, str), f"{name}: which other value is allowed?"
    return "other"


def _texts(values: dict[str, Any]) -> dict[str, str]:
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(values, name="trainmaster", namespace="trainmaster-system")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"replica": 3}, r"additional properties 'replica' not allowed"),
        ({"image": {"tags": "x"}}, r"at '/image': additional properties 'tags' not allowed"),
        ({"replicas": "two"}, r"at '/replicas': got string, want integer"),
        ({"image": {"pullPolicy": "Sometimes"}}, r"at '/image/pullPolicy': value must be one of"),
        ({"image": {"digest": "sha256:abc"}}, r"at '/image/digest': 'sha256:abc' does not match pattern"),
        ({"tolerations": [{"keys": "x"}]}, r"at '/tolerations/0': additional properties 'keys' not allowed"),
        ({"metrics": {"finishedSeconds": -1}}, r"at '/metrics/finishedSeconds': minimum"),
        ({"metrics": {"readers": [{"name": "x"}]}}, r"at '/metrics/readers/0': missing property 'namespace'"),
        ({"networkPolicy": {"agentsFrom": [{}]}}, r"at '/networkPolicy/agentsFrom/0': minProperties"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(helm_python.HelmError, match=sentence):
        render(values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"serviceAccount": {"create": False}}, "serviceAccount.name must name the ServiceAccount"),
        ({"certManager": {"enabled": True}}, "certManager.enabled needs certManager.issuerRef.name"),
        (
            {"commonLabels": {"app.kubernetes.io/name": "ours"}},
            "commonLabels has app.kubernetes.io/name, which the chart",
        ),
        (
            {"podLabels": {"app.kubernetes.io/instance": "a"}},
            "podLabels has app.kubernetes.io/instance, which the chart",
        ),
        ({"agentImage": {"tag": "2"}}, "agentImage.tag and agentImage.digest need agentImage.repository"),
        ({"agentImage": {"digest": f"sha256:{'0' * 64}"}}, "agentImage.digest need agentImage.repository"),
        (
            {"metrics": {"serviceMonitor": {"enabled": True, "kind": "PodMonitor"}}},
            "metrics.serviceMonitor.kind PodMonitor can't show the token of Prometheus itself",
        ),
    ],
)
def test_values_that_need_each_other_are_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(helm_python.HelmError, match=sentence):
        render(values)


@pytest.mark.parametrize(
    ("switch", "sentence"),
    [
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "metrics.serviceMonitor.enabled needs the Prometheus"),
        ({"metrics": {"prometheusRule": {"enabled": True}}}, "metrics.prometheusRule.enabled needs the Prometheus"),
        ({"certManager": EVERYTHING["certManager"]}, "certManager.enabled needs cert-manager"),
    ],
)
def test_a_cluster_without_the_api_that_a_switch_needs_is_named(
    switch: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    """The engine here believes in an API server with the built-in groups alone, and without aggregation. So the chart
    is made to look for a built-in group where it looks for the aggregation API."""
    chart = shutil.copytree(CHART, tmp_path / "trainmaster")
    helpers = chart / "templates" / "_helpers.tpl"
    helpers.write_text(helpers.read_text().replace("apiregistration.k8s.io/v1", "apps/v1"))
    with helm_python.Chart.load(chart) as loaded, pytest.raises(helm_python.HelmError, match=sentence):
        loaded.render(switch)


def test_a_parent_chart_may_hand_down_what_helm_hands_down() -> None:
    assert render({"global": {"anything": 1}, "enabled": True}) == render()


def test_a_default_can_be_taken_away() -> None:
    objects = render({"resources": {"limits": None}})
    assert operator_pod(objects)["containers"][0]["resources"].keys() == {"requests"}


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_probe_can_be_taken_away(probe: str) -> None:
    (container,) = operator_pod(render({probe: None}))["containers"]
    assert {name for name in container if name.endswith("Probe")} == {
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
    } - {probe}


def test_all_users_of_job_pods_can_be_left_to_the_cluster_at_once() -> None:
    objects = render({"jobPods": {"securityContext": None}})
    assert {argument(objects, name) for name in ("job-user", "job-group", "job-fs-group")} == {"any"}


def test_operators_spread_by_their_own_labels() -> None:
    foreign = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": STRINGS},
    }
    ours = {key: foreign[key] for key in ("maxSkew", "topologyKey", "whenUnsatisfiable")}
    objects = render({"topologySpreadConstraints": [foreign, ours]})
    first, second = operator_pod(objects)["topologySpreadConstraints"]
    assert first == foreign
    assert second["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"


@pytest.mark.parametrize("name", ["deployment.yaml", "monitoring.yaml", "dashboards.yaml"])
def test_a_label_or_annotation_that_is_given_twice_stands_once(name: str) -> None:
    """Helm itself takes the last one; Flux and kustomize refuse the object."""
    team = {"team": "a"}
    metrics = {name: {"enabled": True, "labels": team} for name in ("serviceMonitor", "prometheusRule")}
    values = {
        "commonLabels": {"team": "b"},
        "podLabels": team,
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "metrics": {**metrics, "secure": False, "dashboards": {"enabled": True, "label": "team", "labelValue": "a"}},
    }
    text = _texts(values)[f"trainmaster/templates/{name}"]
    for document in yaml.compose_all(text):
        for keys in filter(None, _keys(document)):
            assert len(keys) == len(set(keys)), f"{name}: {keys}"
    assert "team: b" not in text.partition("template:")[2] if name == "deployment.yaml" else "team: b" not in text


def _keys(node: yaml.Node | None) -> Iterator[list[str]]:
    """Yield the keys of each map."""
    if isinstance(node, yaml.MappingNode):
        yield [key.value for key, _ in node.value]
        for _, child in node.value:
            yield from _keys(child)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _keys(child)


def test_operators_leave_a_lost_node_soon_whatever_else_they_tolerate() -> None:
    other = {"key": "other", "operator": "Exists"}
    tolerated = operator_pod(render({"tolerations": [other]}))["tolerations"]
    assert tolerated.pop() == other
    assert {one["key"] for one in tolerated} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert all(one["effect"] == "NoExecute" and one["tolerationSeconds"] == 30 for one in tolerated)


def test_by_default_nothing_but_the_node_counts_when_operators_spread() -> None:
    (constraint,) = operator_pod(render())["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "kubernetes.io/hostname"


def test_one_watched_namespace_reaches_the_operator() -> None:
    assert argument(render({"watchNamespace": "team-a"}), "watch-namespace") == "team-a"
    assert argument(render(), "watch-namespace") is None


def test_a_value_without_a_description_is_refused() -> None:
    with pytest.raises(generate.BadValues, match=r"a\.b has no description"):
        read_values("a:\n  b: 1\n")


def test_an_empty_map_has_to_say_what_may_stand_in_it() -> None:
    with pytest.raises(generate.BadValues, match="add @schema"):
        read_values("# -- Something.\na: {}\n")
