"""What a cluster would refuse is said before anything is stored, and a field that it doesn't know is never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from e2e.kube import JOB, Object
from e2e.test_start import reason
from e2e.world import World

TEMPLATE = "spec.workers.template.spec"


def misspelt(world: World) -> Object:
    resources = {"requests": {"cpu": "100m"}, "limit": {"nvidia.com/gpu": 1}}
    return world.script(["true"], template={"tolerrations": []}, container={"resources": resources})


def written(folder: Path, job: Object) -> str:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return str(file)


@pytest.mark.parametrize("command", [("submit",), ("validate", "--cluster")])
def test_misspelt_fields_of_a_pod_are_named_and_nothing_is_stored(
    world: World, tmp_path: Path, command: tuple[str, ...]
) -> None:
    words = world.refused(*command, written(tmp_path, misspelt(world)))
    assert f"{TEMPLATE}.tolerrations: unknown field of a pod; did you mean tolerations?" in words
    assert f"{TEMPLATE}.containers[0].resources.limit: unknown field of a pod; did you mean limits?" in words
    assert world.kube.list(JOB, world.namespace) == []


def test_a_job_that_was_stored_with_a_misspelt_field_says_so_and_starts_no_pod_until_it_is_corrected(
    world: World,
) -> None:
    job = misspelt(world)
    world.submit(job)
    words = world.wait(lambda status: reason(status), "the reason")
    assert words.startswith("ConfigError")
    assert 'unknown field "spec.tolerrations"' in words
    assert world.pods() == []
    right = world.script(["true"])["spec"]["workers"]["template"]["spec"]
    template = {"spec": {**right, "tolerrations": None}}
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"workers": {"template": template}}})
    world.succeeded()


def test_a_dry_run_that_passes_stores_nothing(world: World, tmp_path: Path) -> None:
    words = world.trainmaster("validate", "--cluster", written(tmp_path, world.training()))
    assert "is valid (2 ranks); it was checked on https://" in words
    assert world.kube.list(JOB, world.namespace) == []
    assert world.pods() == []


def test_a_pod_that_the_namespace_forbids_is_refused_before_it_is_submitted(world: World, tmp_path: Path) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    world.kube.patch("Namespace", world.namespace, "", label)
    words = world.refused("submit", written(tmp_path, world.script(["true"], template={"hostNetwork": True})))
    assert "the cluster refuses its pods: " in words
    assert "violates PodSecurity" in words
    assert world.kube.list(JOB, world.namespace) == []


def test_a_full_quota_is_told_and_the_job_is_submitted_and_waits(world: World, tmp_path: Path) -> None:
    world.limit_pods(0)
    words = world.remarks("submit", written(tmp_path, world.script(["true"])))
    assert "its pods cannot start now: " in words
    assert "exceeded quota" in words
    assert "exceeded quota" in world.wait(lambda status: reason(status), "the reason")
