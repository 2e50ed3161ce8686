from __future__ import annotations

from typing import Any

import helm_python
import pytest
import yaml

from charts.generate import CHART, ROOT
from tests import kubernetes_schemas
from tests.chart.rendering import EVERYTHING, argument, ids, only, operator_pod, render, values_file
from trainmaster.agent.shell import self_fencing
from trainmaster_operator.manifests.ca_config_map import CA_KEY, CA_NAME
from trainmaster_operator.runtime import kubernetes_operator, operator_options

PROMETHEUS = {"name": "prometheus-k8s", "namespace": "monitoring"}
CLOUDS = sorted(path.name for path in CHART.glob("values-*.yaml"))
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "Certificate"}  # of other projects: no schema here

SITUATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "one namespace": {"watchNamespace": "team-a", "metrics": {"jobs": False}},
    **{cloud: values_file(cloud) for cloud in CLOUDS},
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_chart_lints_without_a_warning(situation: str) -> None:
    report = helm_python.lint(CHART, SITUATIONS[situation], strict=True)
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert not report["errors"]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_kubernetes_knows_every_field_of_every_object(situation: str) -> None:
    for obj in render(SITUATIONS[situation]):
        if obj["kind"] not in FOREIGN:
            assert kubernetes_schemas.problem(obj) == "", obj["metadata"]["name"]


NUMBER = "2026"
"""A name that YAML reads as a number. Namespaces, Secrets, accounts and releases may have such names."""

NAMED_BY_NUMBERS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "the namespace": ({"namespace": NUMBER}, {"nodes": {"taint": True}, **EVERYTHING}),
    "the release": ({"name": NUMBER}, {"fullnameOverride": "ours", "nodes": {"taint": True}, **EVERYTHING}),
    "values": (
        {},
        {
            "nameOverride": NUMBER,
            "watchNamespace": NUMBER,
            "nodes": {"taint": True},
            "serviceAccount": {"name": NUMBER},
            "priorityClass": {"create": True, "name": NUMBER},
            "imagePullSecrets": [{"name": NUMBER}],
            "metrics": {
                "readers": [{"name": NUMBER, "namespace": NUMBER}],
                "serviceMonitor": {"enabled": True, "tokenSecret": {"name": NUMBER, "key": NUMBER}},
                "dashboards": {"enabled": True, "namespace": NUMBER},
            },
            "networkPolicy": {"enabled": True},
            "certManager": {"enabled": True, "issuerRef": {"name": NUMBER}},
        },
    ),
}


@pytest.mark.parametrize("what", NAMED_BY_NUMBERS)
@pytest.mark.parametrize("tests", [False, True])
def test_a_name_that_looks_like_a_number_stays_a_text(what: str, tests: bool) -> None:
    where, values = NAMED_BY_NUMBERS[what]
    for obj in render(values, **where, tests=tests):
        assert NUMBER not in _numbers(obj), obj["metadata"]["name"]


def _numbers(value: Any) -> set[str]:
    """Return all numbers in an object."""
    if isinstance(value, dict):
        return set().union(*map(_numbers, value.values()))
    if isinstance(value, list):
        return set().union(*map(_numbers, value))
    return {str(value)} if isinstance(value, int) else set()


def test_kubernetes_knows_every_field_of_the_policy_for_jobs() -> None:
    policy = yaml.safe_load((CHART / "examples" / "job-network-policy.yaml").read_text())
    assert kubernetes_schemas.problem(policy) == ""
    operators = policy["spec"]["egress"][1]["to"][0]["podSelector"]["matchLabels"]
    assert operators.items() <= only(render(), "Deployment")["spec"]["template"]["metadata"]["labels"].items()


def test_the_policy_for_jobs_lets_agents_reach_the_api_server_by_its_service_and_by_its_own_port() -> None:
    """Some clusters apply policies behind Services; the API server of kubeadm and of OpenShift listens on 6443."""
    service = self_fencing.api_server({"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert service is not None
    assert {("TCP", service[1]), ("TCP", 6443)} <= _open_to_all_addresses()


def test_the_policy_for_jobs_lets_them_ask_dns_by_its_service_and_by_the_port_of_its_pods_on_openshift() -> None:
    """OVN-Kubernetes applies policies behind Services, and the pods of OpenShift's DNS listen on 5353."""
    assert {(protocol, port) for protocol in ("UDP", "TCP") for port in (53, 5353)} <= _open_to_all_addresses()


def _open_to_all_addresses() -> set[tuple[str, int]]:
    """Ports by protocol that the policy for jobs lets its pods reach at any address."""
    policy = yaml.safe_load((CHART / "examples" / "job-network-policy.yaml").read_text())
    rules = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]
    return {(port["protocol"], port["port"]) for ports in rules for port in ports}


def test_the_names_are_those_that_operator_and_agents_rely_on() -> None:
    objects = render()
    assert {("Deployment", "trainmaster-operator"), ("ServiceAccount", "trainmaster-operator")} < ids(objects)
    service = only(objects, "Service", "trainmaster-operator")
    assert service["metadata"]["namespace"] == "trainmaster-system"
    assert argument(objects, "operator-url") == "https://trainmaster-operator.trainmaster-system.svc:8443"
    assert [port["port"] for port in service["spec"]["ports"]] == [8443]


def test_with_the_longest_name_every_name_of_something_with_pods_or_an_address_is_a_label() -> None:
    values = {"fullnameOverride": "n" * 44, "nodes": {"taint": True}}
    objects = render(values) + render(values, tests=True)
    names = {o["metadata"]["name"] for o in objects if o["kind"] in ("Deployment", "Job", "Pod", "Service")}
    assert len(names) == 4  # The Deployment and its Service bear one name.
    assert max(map(len, names)) <= 63


@pytest.mark.parametrize("release", ["2026-training", "training.lab"])
def test_a_release_whose_name_no_service_can_have_is_refused_with_the_way_out(release: str) -> None:
    with pytest.raises(helm_python.HelmError, match=f"{release}-trainmaster-operator.*Set fullnameOverride"):
        render(name=release)
    assert ("Service", "ours-operator") in ids(render({"fullnameOverride": "ours"}, name=release))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_operator_understands_its_command_line(situation: str) -> None:
    (container,) = operator_pod(render(SITUATIONS[situation]))["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    options = operator_options.parser().parse_args(container["args"])
    assert (options.control_port, options.health_port) == (ports["control"], ports["health"])
    assert container["command"] == ["python3", "-m", kubernetes_operator.__name__]


@pytest.mark.parametrize(
    ("values", "user", "group", "fs_group", "restricts"),
    [
        ({}, 65532, 65532, 65532, False),
        ({"jobPods": {"securityContext": {"runAsUser": 1, "fsGroup": 2_000_000_000}}}, 1, 65532, 2_000_000_000, False),
        (values_file("values-openshift.yaml"), None, None, None, True),
    ],
)
def test_the_operator_is_told_as_whom_the_pods_of_jobs_run(
    values: dict[str, Any], user: int | None, group: int | None, fs_group: int | None, restricts: bool
) -> None:
    options = operator_options.parser().parse_args(operator_pod(render(values))["containers"][0]["args"])
    assert (options.job_user, options.job_group, options.job_fs_group) == (user, group, fs_group)
    assert options.restrict_user_images is restricts


@pytest.mark.parametrize("replicas", [0, 1])
def test_fewer_than_two_operators_have_no_disruption_budget(replicas: int) -> None:
    assert "PodDisruptionBudget" not in {kind for kind, _ in ids(render({"replicas": replicas}))}


def test_two_operators_are_never_drained_at_once() -> None:
    assert only(render(), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_an_upgrade_starts_an_operator_before_it_ends_one() -> None:
    assert only(render(), "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize(
    ("values", "added"),
    [
        ({"priorityClass": {"create": True}}, {("PriorityClass", "trainmaster-operator")}),
        ({"networkPolicy": {"enabled": True}}, {("NetworkPolicy", "trainmaster-operator")}),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, {("ServiceMonitor", "trainmaster-operator")}),
        ({"metrics": {"readers": [PROMETHEUS]}}, {("ClusterRoleBinding", "trainmaster-metrics-reader")}),
        ({"metrics": {"prometheusRule": {"enabled": True}}}, {("PrometheusRule", "trainmaster-operator")}),
        (
            {"metrics": {"dashboards": {"enabled": True}}},
            {
                ("ConfigMap", f"trainmaster-operator-{name}-dashboard")
                for name in ("fleet", "job", "operator", "recovery")
            },
        ),
        ({"certManager": EVERYTHING["certManager"]}, {("Certificate", "trainmaster-operator")}),
    ],
)
def test_a_switch_adds_its_object_and_no_other(values: dict[str, Any], added: set[tuple[str, str]]) -> None:
    assert ids(render(values)) - ids(render()) == added


def test_the_crd_is_the_generated_one_and_stays_when_the_chart_goes() -> None:
    crd = only(render(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    crd["metadata"].pop("labels")
    (path,) = (ROOT / "manifests" / "crd").iterdir()
    assert crd == yaml.safe_load(path.read_text())


def test_the_crd_can_be_left_out_or_go_with_the_chart() -> None:
    assert "CustomResourceDefinition" not in {kind for kind, _ in ids(render({"crds": {"enabled": False}}))}
    assert "annotations" not in only(render({"crds": {"keep": False}}), "CustomResourceDefinition")["metadata"]


def test_the_operator_meets_the_restricted_pod_security_standard() -> None:
    pod = operator_pod(render(EVERYTHING))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} == {"emptyDir", "secret"}


def test_the_services_select_the_operators_pods() -> None:
    objects = render()
    deployment = only(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in operator_pod(objects)["containers"][0]["ports"]}
    services = [obj for obj in objects if obj["kind"] == "Service"]
    assert len(services) == 2
    for service in services:
        assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert service["spec"]["ports"][0]["targetPort"] in ports


def test_prometheus_finds_the_service_of_metrics_and_no_other() -> None:
    objects = render(EVERYTHING)
    monitor = only(objects, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    found = [obj for obj in objects if obj["kind"] == "Service" and wanted <= obj["metadata"]["labels"].items()]
    assert [obj["metadata"]["name"] for obj in found] == ["trainmaster-operator-metrics"]
    assert monitor["endpoints"][0]["port"] == found[0]["spec"]["ports"][0]["name"]


def test_a_scrape_is_encrypted_and_shows_a_token() -> None:
    objects = _monitored()
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["honorLabels"]) == ("https", True)
    assert argument(objects, "operator-url") == f"https://{endpoint['tlsConfig']['serverName']}:8443"
    assert endpoint["tlsConfig"]["ca"] == {"configMap": {"name": CA_NAME, "key": CA_KEY}}
    assert "authorization" not in endpoint
    assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    secret = {"name": "scraper", "key": "t"}
    (endpoint,) = only(_monitored(tokenSecret=secret), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": secret}
    assert "bearerTokenFile" not in endpoint


def test_the_values_that_the_page_on_monitoring_shows_let_its_prometheus_in() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    shown = yaml.safe_load(page.split("which tests/chart/test_objects.py renders -->\n```\n")[1].split("```")[0])
    objects = render(shown)
    (reader,) = shown["metrics"]["readers"]
    assert only(objects, "ClusterRoleBinding", "trainmaster-metrics-reader")["subjects"][0]["name"] == reader["name"]
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert only(objects, kind)["metadata"]["labels"]["release"] == "monitoring"


def test_the_values_that_the_page_on_pod_security_shows_reach_the_operator() -> None:
    page = (ROOT / "docs" / "install-openshift.md").read_text()
    mark = "which tests/chart/test_objects.py renders -->\n```\n"
    filled, chosen = (yaml.safe_load(part.split("```")[0]) for part in page.split(mark)[1:])
    assert "--restrict-user-images" in operator_pod(render(filled))["containers"][0]["args"]
    objects = render(chosen)
    wanted = chosen["jobPods"]["securityContext"]
    assert [argument(objects, name) for name in ("job-user", "job-group", "job-fs-group")] == [
        str(wanted[name]) for name in ("runAsUser", "runAsGroup", "fsGroup")
    ]


def test_a_pod_monitor_scrapes_the_same_port_of_the_operators_pods() -> None:
    for secure, name in ((True, "metrics"), (False, "health")):
        objects = _monitored(secure=secure, kind="PodMonitor", tokenSecret={"name": "scraper"})
        spec = only(objects, "PodMonitor")["spec"]
        (endpoint,) = spec["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint.get("scheme")) == (name, "https" if secure else None)
        labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        ports = {port["name"]: port["containerPort"] for port in operator_pod(objects)["containers"][0]["ports"]}
        assert endpoint["port"] in ports


def _monitored(secure: bool = True, **monitor: Any) -> list[dict[str, Any]]:
    return render({"metrics": {"secure": secure, "serviceMonitor": {"enabled": True, **monitor}}})


def test_plain_metrics_are_found_by_annotations_and_by_the_monitor() -> None:
    objects = _monitored(secure=False)
    annotations = only(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true"
    (container,) = operator_pod(objects)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert annotations["prometheus.io/port"] == str(ports["health"])
    options = operator_options.parser().parse_args(container["args"])
    assert options.plain_metrics
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint.keys() & {"scheme", "tlsConfig", "authorization", "bearerTokenFile"} == set()
    service = only(objects, "Service", "trainmaster-operator-metrics")["spec"]
    assert service["ports"] == [
        {"name": "metrics", "port": 8080, "targetPort": "health", "protocol": "TCP", "appProtocol": "http"}
    ]


def test_nothing_tells_others_where_secure_metrics_are() -> None:
    objects = render()
    assert "prometheus.io/scrape" not in only(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    options = operator_options.parser().parse_args(operator_pod(objects)["containers"][0]["args"])
    ports = {port["name"]: port["containerPort"] for port in operator_pod(objects)["containers"][0]["ports"]}
    assert (options.plain_metrics, options.metrics_port) == (False, ports["metrics"])
    assert options.finished_metrics_seconds == 6 * 3600


def test_only_the_named_peers_reach_the_operator() -> None:
    policy = only(render(EVERYTHING), "NetworkPolicy")["spec"]
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    assert by_port["control"] == [{"namespaceSelector": {}}]
    assert "health" not in by_port  # kubelets may probe in any case
    assert by_port["metrics"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    assert policy["policyTypes"] == ["Ingress"]


def test_an_issued_certificate_is_for_the_name_that_agents_connect_to() -> None:
    objects = render(EVERYTHING)
    certificate = only(objects, "Certificate")["spec"]
    assert argument(objects, "operator-url") == f"https://{certificate['dnsNames'][0]}:8443"
    (tls,) = [volume for volume in operator_pod(objects)["volumes"] if volume["name"] == "tls"]
    assert tls["secret"]["secretName"] == certificate["secretName"]
    mounts = {mount["name"]: mount["mountPath"] for mount in operator_pod(objects)["containers"][0]["volumeMounts"]}
    assert mounts["tls"] == argument(objects, "tls-dir")


def test_an_issuer_of_another_group_with_a_kind_of_its_own_can_issue_the_certificate() -> None:
    issuer = {"group": "awspca.cert-manager.io", "kind": "AWSPCAClusterIssuer", "name": "our-ca"}
    objects = render({"certManager": {"enabled": True, "issuerRef": issuer}})
    assert only(objects, "Certificate")["spec"]["issuerRef"] == issuer


def test_a_digest_wins_over_a_tag() -> None:
    digest = f"sha256:{'ab' * 32}"
    objects = render({"image": {"repository": "r/o", "tag": "t", "digest": digest}, "trainerImage": {"tag": "t"}})
    assert operator_pod(objects)["containers"][0]["image"] == f"r/o@{digest}"
    assert argument(objects, "agent-image") == f"r/o@{digest}"
    assert argument(objects, "trainer-image") == "trainmaster/trainer:t"


def test_releases_that_watch_one_namespace_each_can_bear_one_name() -> None:
    separate = {"watchNamespace": "jobs", "crds": {"enabled": False}, "rbac": {"aggregateRoles": False}}
    first, second = (
        {(obj["kind"], obj["metadata"]["name"]) for obj in render(separate, namespace=namespace) if _is_global(obj)}
        for namespace in ("a", "b")
    )
    assert first
    assert not first & second


def _is_global(obj: dict[str, Any]) -> bool:
    return "namespace" not in obj["metadata"]


def test_every_namespaced_object_says_its_namespace() -> None:
    unnamed = {obj["kind"] for obj in render(EVERYTHING) if _is_global(obj)}
    assert unnamed == {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}
