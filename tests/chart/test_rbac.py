"""The table in the chart's README is what the operator may do: its roles grant that, no more and no less."""

from __future__ import annotations

import re
from typing import Any

import pytest

from charts.generate import CHART
from tests.chart.rendering import ids, only, render
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.nodes import remove_taints
from trainmaster_operator.runtime.observability import metrics_access

READER = "trainmaster-metrics-reader"

Grants = set[tuple[str, str, str]]
"""(resource, its name or "", verb)"""

SECTIONS = {
    "namespaces of jobs": "jobs",
    "its own namespace": "own",
    "cluster": "tokens",
    "cluster, with `nodes.taint`": "taint",
    "cluster, with `nodes.list`": "list",
}


def told() -> dict[str, Grants]:
    readme = (CHART / "README.md").read_text()
    table = readme.split("## What the operator may do")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    grants: dict[str, Grants] = {}
    section = ""
    for where, resource, verbs, _ in rows[2:]:
        section = SECTIONS[where] if where else section
        for part in verbs.split(";"):
            names = re.findall(r"of `([^`]+)`", part)
            for verb in re.findall(r"[a-z]+", part.split(" of ")[0]):
                grants.setdefault(section, set()).add((resource, names[0] if names else "", verb))
    return grants


def granted(role: dict[str, Any]) -> Grants:
    return {
        (resource, name, verb)
        for rule in role["rules"]
        for resource in rule.get("resources", rule.get("nonResourceURLs"))
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("values", "kind", "name"),
    [
        ({}, "ClusterRole", "trainmaster-operator-jobs"),
        ({"watchNamespace": "team-a"}, "Role", "trainmaster-operator-trainmaster-system-jobs"),
    ],
)
def test_what_is_granted_where_jobs_run_is_what_the_readme_tells(values: dict[str, Any], kind: str, name: str) -> None:
    role = only(render(values), kind, name)
    assert granted(role) == told()["jobs"]
    assert role["metadata"].get("namespace") == values.get("watchNamespace")


def test_what_is_granted_in_the_operators_namespace_is_what_the_readme_tells() -> None:
    role = only(render(), "Role", "trainmaster-operator")
    assert granted(role) == told()["own"]
    assert role["metadata"]["namespace"] == "trainmaster-system"


def test_of_the_whole_cluster_only_tokens_are_granted_with_one_watched_namespace() -> None:
    objects = render({"watchNamespace": "team-a", "rbac": {"aggregateRoles": False}})
    name = "trainmaster-operator-trainmaster-system-tokens"
    assert granted(only(objects, "ClusterRole", name)) == told()["tokens"]


def test_without_secure_metrics_no_right_is_granted_for_them() -> None:
    objects = render({"metrics": {"secure": False}})
    tokens = granted(only(objects, "ClusterRole", "trainmaster-operator-tokens"))
    assert tokens == told()["tokens"] - {("subjectaccessreviews", "", "create")}
    own = granted(only(objects, "Role", "trainmaster-operator"))
    assert own == told()["own"] - {("configmaps", "trainmaster-ca", "patch")}
    assert ("ClusterRole", READER) not in ids(objects)


@pytest.mark.parametrize("value", ["taint", "list"])
def test_rights_to_nodes_are_granted_only_where_a_value_says_so(value: str) -> None:
    name = "trainmaster-operator-nodes"
    objects = render({"nodes": {value: True}})
    assert granted(only(objects, "ClusterRole", name)) == told()[value]
    assert ("ClusterRole", name) not in ids(render())
    arguments = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--{value}-nodes" in arguments


def test_before_an_uninstall_the_taint_is_taken_from_all_nodes_by_a_pod_that_no_service_selects() -> None:
    objects = render({"nodes": {"taint": True}})
    job = only(objects, "Job", "trainmaster-operator-remove-taints")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    template = job["spec"]["template"]
    assert template["spec"]["containers"][0]["command"][-1] == remove_taints.__name__
    chosen = only(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not chosen.items() <= template["metadata"]["labels"].items()
    assert ("Job", "trainmaster-operator-remove-taints") not in ids(render())


def test_scrapers_may_get_metrics_and_nothing_else() -> None:
    reader = {"name": "prometheus-k8s", "namespace": "monitoring"}
    objects = render({"metrics": {"readers": [reader]}})
    assert granted(only(objects, "ClusterRole", READER)) == {("/metrics", "", "get")}
    binding = only(objects, "ClusterRoleBinding", READER)
    assert binding["roleRef"]["name"] == READER
    assert binding["subjects"] == [{"kind": "ServiceAccount", **reader}]
    assert ("ClusterRoleBinding", READER) not in ids(render())
    assert READER == metrics_access.ROLE


def test_every_role_of_the_operator_is_bound_to_it_and_to_nobody_else() -> None:
    for_itself = {"aggregateRoles": False, "showLeader": False}
    for values in ({"rbac": for_itself}, {"watchNamespace": "a", "rbac": for_itself}):
        objects = render(values)
        roles = {_place(obj) for obj in objects if obj["kind"] in ("Role", "ClusterRole")}
        roles -= {role for role in roles if role[2].startswith(READER)}  # is for scrapers
        bound = set()
        for obj in objects:
            if obj["kind"] in ("RoleBinding", "ClusterRoleBinding"):
                ref = obj["roleRef"]
                bound.add((ref["kind"], obj["metadata"].get("namespace"), ref["name"]))
                assert obj["subjects"] == [
                    {"kind": "ServiceAccount", "name": "trainmaster-operator", "namespace": "trainmaster-system"}
                ]
        assert roles == bound


def _place(role: dict[str, Any]) -> tuple[str, str | None, str]:
    return role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"]


def test_every_user_may_get_the_one_lease_that_tells_who_leads_unless_the_installation_forbids_it() -> None:
    name = "trainmaster-operator-lease-reader"
    objects = render()
    assert granted(only(objects, "Role", name)) == {("leases", LeaseSettings.name, "get")}
    (subject,) = only(objects, "RoleBinding", name)["subjects"]
    assert (subject["kind"], subject["name"]) == ("Group", "system:authenticated")
    assert ("Role", name) not in ids(render({"rbac": {"showLeader": False}}))


def test_no_rule_has_a_wildcard() -> None:
    for obj in render():
        for rule in obj.get("rules", []):
            assert "*" not in [word for words in rule.values() for word in words]


def test_viewers_see_jobs_and_editors_run_them() -> None:
    objects = render()
    viewer = only(objects, "ClusterRole", "trainmaster-operator-job-viewer")
    editor = only(objects, "ClusterRole", "trainmaster-operator-job-editor")
    assert viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert editor["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {verb for _, _, verb in granted(viewer)} == {"get", "list", "watch"}
    assert ("distributedtrainingjobs", "", "create") in granted(editor)


def test_pods_that_use_rights_get_a_token_whatever_their_service_account_says() -> None:
    """One that exists already may say automountServiceAccountToken: false, as policies of clusters ask for."""
    values = {"serviceAccount": {"create": False, "name": "ours"}, "nodes": {"taint": True}}
    pods = [obj["spec"]["template"]["spec"] for obj in render(values) if obj["kind"] in ("Deployment", "Job")]
    pods.append(only(render(values, tests=True), "Pod")["spec"])
    assert [pod.get("automountServiceAccountToken") for pod in pods] == [True] * 3


def test_without_rbac_nothing_is_granted() -> None:
    objects = render({"rbac": {"create": False, "aggregateRoles": False}})
    assert not {obj["kind"] for obj in objects} & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
