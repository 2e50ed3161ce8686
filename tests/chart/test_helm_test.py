"""What `helm test` makes: a job that loses a rank, and a pod that may run it and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests import kubernetes_schemas
from tests.chart.rendering import CHART_FILES, EVERYTHING, Object, only, render
from tests.chart.test_objects import SITUATIONS
from trainmaster_operator.api.validation import unknown_pod_fields
from trainmaster_operator.api.validation.job_validation import validate
from trainmaster_operator.runtime import helm_test


def made(values: dict[str, Any] | None = None) -> list[Object]:
    return render(values, tests=True)


def job(values: dict[str, Any] | None = None) -> Object:
    loaded: Object = yaml.safe_load(only(made(values), "ConfigMap")["data"]["job.yaml"])
    return loaded


@pytest.mark.parametrize("situation", SITUATIONS)
def test_kubernetes_knows_every_field_of_what_a_test_makes(situation: str) -> None:
    for obj in made(SITUATIONS[situation]):
        assert kubernetes_schemas.problem(obj) == "", obj["metadata"]["name"]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_its_job_is_valid(situation: str) -> None:
    assert validate(job(SITUATIONS[situation])) == []
    assert [*unknown_pod_fields.problems(job(SITUATIONS[situation])["spec"]["workers"]["template"])] == []


def test_only_its_pod_is_a_hook_and_an_install_makes_no_pod() -> None:
    hooks = [obj["kind"] for obj in made() if "helm.sh/hook" in obj["metadata"].get("annotations", {})]
    assert hooks == ["Pod"]  # helm test --logs asks for a pod of the name of every hook
    assert not any("helm.sh/hook" in obj["metadata"].get("annotations", {}) for obj in render(EVERYTHING))


def test_the_operators_services_and_policies_do_not_select_its_pod() -> None:
    labels = only(made(), "Pod")["metadata"]["labels"]
    for obj in render(EVERYTHING):
        spec = obj.get("spec") or {}
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector)
        assert not wanted or not wanted.items() <= labels.items(), obj["kind"]


@pytest.mark.parametrize("rights", [True, False])
def test_its_pod_has_a_service_account_whoever_grants_the_rights(rights: bool) -> None:
    """A pod whose ServiceAccount does not exist is refused."""
    objects = made({"rbac": {"create": rights}, "serviceAccount": {"create": False, "name": "ours"}})
    pod, account = only(objects, "Pod"), only(objects, "ServiceAccount")
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert pod["metadata"]["namespace"] == account["metadata"]["namespace"]


def test_without_rights_of_the_charts_own_a_test_brings_none() -> None:
    objects = made({"rbac": {"create": False}})
    assert {obj["kind"] for obj in objects} == {"ConfigMap", "Pod", "ServiceAccount"}


def test_its_pod_runs_the_module_in_the_operators_image_and_may_do_no_more_than_that_asks_for() -> None:
    (container,) = only(made({"image": {"tag": "7"}}), "Pod")["spec"]["containers"]
    assert container["image"] == "trainmaster/operator:7"
    assert container["command"] == ["python3", "-m", helm_test.__name__, "/job/job.yaml"]
    (rule,) = only(made(), "Role")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["distributedtrainingjobs"], ["create", "delete", "get", "watch"])


def test_its_job_runs_where_the_operator_looks_and_on_nodes_that_the_operator_may_use() -> None:
    assert job()["metadata"]["namespace"] == "trainmaster-system"
    values = {
        "watchNamespace": "team-a",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"pool": "system"},
        "imagePullSecrets": [{"name": "registry"}],
    }
    found = job(values)
    assert found["metadata"]["namespace"] == only(made(values), "Role")["metadata"]["namespace"] == "team-a"
    pod = found["spec"]["workers"]["template"]["spec"]
    assert {key: pod[key] for key in ("tolerations", "nodeSelector", "imagePullSecrets")} == {
        key: values[key] for key in ("tolerations", "nodeSelector", "imagePullSecrets")
    }


@pytest.mark.processes
@pytest.mark.parametrize(("attempt", "code"), [("0", -signal.SIGKILL), ("1", 0)])
def test_its_script_loses_rank_1_in_the_first_attempt_and_nothing_in_the_second(attempt: str, code: int) -> None:
    stand_in = "import sys, types; torch = types.ModuleType('torch'); dist = types.ModuleType('torch.distributed')\n"
    stand_in += "class Sum(float):\n  item = lambda self: 2 * dist.steps - 1\n"
    stand_in += "def add(total): dist.steps += 1\n"
    stand_in += "dist.steps = 0; dist.init_process_group = lambda name: None; dist.get_rank = lambda: 1\n"
    stand_in += "dist.all_reduce = add; dist.destroy_process_group = lambda: None\n"
    stand_in += "torch.tensor = lambda values: Sum(values[0]); torch.distributed = dist\n"
    stand_in += "sys.modules.update({'torch': torch, 'torch.distributed': dist})\n"
    script = (CHART_FILES / "lose_a_rank.py").read_text()
    environment = {**os.environ, "TORCHELASTIC_RESTART_COUNT": attempt}
    done = subprocess.run([sys.executable, "-c", stand_in + script], env=environment, check=False)
    assert done.returncode == code
