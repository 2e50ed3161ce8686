"""What is said when the ranks of a pod and the GPUs that it asks for do not go together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.api.validation import device_count, job_validation

TEMPLATE = "spec__workers__template"
NONE = (
    "spec.training.device: CUDA needs a GPU for each rank, but the first container of the template asks for none; set "
    "its resources.limits to {nvidia.com/gpu: 2}, or set device to Auto or CPU"
)


def with_pod(base: dict[str, Any], ranks: int | None, container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    """A job of one pod whose first container has these fields. `ranks`: None leaves ranksPerPod out."""
    command = {} if base is TRAINMASTER else {"command": ["python", "train.py"]}
    workers = {"replicas": 1} if ranks is None else {"replicas": 1, "ranksPerPod": ranks}
    template = {"spec": {"containers": [{"name": "a", **command, **container}], **pod}}
    return job(base, spec__workers={**workers, "template": template})


def own_loop(device: str | None, ranks: int | None, container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    """A job of our own loop. `device`: None leaves training.device out."""
    document = with_pod(TRAINMASTER, ranks, container, **pod)
    document["spec"]["training"].update({"parallelism": {}, **({} if device is None else {"device": device})})
    return document


def limits(**amounts: Any) -> dict[str, Any]:
    return {"resources": {"limits": {name.replace("__", "/").replace("_", "."): n for name, n in amounts.items()}}}


def gpus(number: int) -> dict[str, Any]:
    return limits(nvidia_com__gpu=number) if number else {}


def script(framework: str, ranks: int | None, devices: int) -> dict[str, Any]:
    document = with_pod(PYTORCH, ranks, gpus(devices))
    document["spec"]["framework"] = framework
    return document


def problems(document: dict[str, Any], *, on_cluster: bool = True) -> list[str]:
    return [str(problem) for problem in job_validation.validate(document, on_cluster=on_cluster)]


def warnings(document: dict[str, Any]) -> list[str]:
    assert problems(document) == []
    return list(device_count.warnings(JobSpec.model_validate(document["spec"])))


def test_ranks_that_must_have_gpus_in_pods_that_ask_for_none_are_refused_for_a_cluster() -> None:
    assert problems(own_loop("CUDA", 2, {})) == [NONE]
    assert problems(own_loop("CUDA", 2, limits(cpu=2))) == [NONE]
    assert problems(own_loop("CUDA", 2, {"image": "example.com/own:1"})) == [NONE]
    assert problems(own_loop("CUDA", 2, {}, containers=[{"name": "a"}, {"name": "b", **gpus(2)}])) == [NONE]


def test_a_stored_job_without_the_gpus_that_it_needs_can_still_be_read() -> None:
    assert JobSpec.model_validate(own_loop("CUDA", 2, {})["spec"]).workers.ranksPerPod == 2


def test_a_run_on_one_machine_needs_no_gpus_in_its_template() -> None:
    assert problems(own_loop("CUDA", 2, {}), on_cluster=False) == []


@pytest.mark.parametrize("device", [None, "Auto", "CPU"])
def test_ranks_that_may_compute_on_the_cpu_need_no_gpus(device: str | None) -> None:
    assert warnings(own_loop(device, 2, {})) == []


@pytest.mark.parametrize(
    ("container", "pod"),
    [
        (limits(example_com__gpu=2), {}),
        ({"resources": {"claims": [{"name": "gpus"}]}}, {"resourceClaims": [{"name": "gpus"}]}),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, {}),
        ({"envFrom": [{"configMapRef": {"name": "devices"}}]}, {}),
        ({}, {"runtimeClassName": "nvidia"}),
    ],
    ids=["another resource", "a claim", "a variable", "variables of a ConfigMap", "a runtime class"],
)
def test_a_pod_that_may_see_gpus_in_another_way_is_accepted(container: dict[str, Any], pod: dict[str, Any]) -> None:
    assert warnings(own_loop("CUDA", 2, container, **pod)) == []


@pytest.mark.parametrize(
    ("device", "ranks", "devices", "sentence"),
    [
        (None, 8, 8, None),
        ("Auto", 1, 1, None),
        ("CUDA", 8, 8, None),
        (
            "CPU",
            2,
            2,
            "spec.training.device is CPU, so ranks compute on the CPU, but each pod asks for 2 GPUs; leave device out "
            "to use them, or ask for none",
        ),
        (
            None,
            2,
            1,
            "spec.workers.ranksPerPod is 2, but each pod asks for 1 GPU, so all ranks compute on the CPU; make the two "
            "numbers equal",
        ),
        (
            None,
            None,
            8,
            "spec.workers.ranksPerPod is 1, but each pod asks for 8 GPUs, of which each rank uses one; make the two "
            "numbers equal",
        ),
        (
            "CUDA",
            2,
            4,
            "spec.workers.ranksPerPod is 2, but each pod asks for 4 GPUs, of which each rank uses one; make the two "
            "numbers equal",
        ),
    ],
)
def test_gpus_that_our_own_loop_leaves_unused_are_named(
    device: str | None, ranks: int | None, devices: int, sentence: str | None
) -> None:
    assert warnings(own_loop(device, ranks, gpus(devices))) == ([] if sentence is None else [sentence])


FAILS = (
    "spec.workers.ranksPerPod is 2, but each pod asks for 1 GPU, so a script that takes the GPU with the number "
    "LOCAL_RANK fails; make the two numbers equal"
)
FORGOTTEN = (
    "each pod asks for 8 GPUs and has 1 rank, because spec.workers.ranksPerPod is not set; set it to 8, or to 1 if a "
    "rank of this script uses all GPUs of its pod"
)


@pytest.mark.parametrize(
    ("framework", "ranks", "devices", "sentence"),
    [
        ("PyTorch", 8, 8, None),
        ("PyTorch", 2, 0, None),
        ("PyTorch", 2, 1, FAILS),
        ("JAX", 2, 1, FAILS),
        ("PyTorch", None, 8, FORGOTTEN),
        ("DeepSpeed", None, 8, FORGOTTEN),
        ("PyTorch", 1, 8, None),  # DataParallel: a person has written the number
        ("PyTorch", 4, 8, None),  # two GPUs for each rank
        ("TensorFlow", None, 8, None),  # MirroredStrategy
        ("JAX", None, 8, None),  # a process has all devices of its host
    ],
)
def test_gpus_that_a_script_hardly_means_to_share_or_to_leave_unused_are_named(
    framework: str, ranks: int | None, devices: int, sentence: str | None
) -> None:
    assert warnings(script(framework, ranks, devices)) == ([] if sentence is None else [sentence])
