"""The number of devices that a pod asks for, and whether its ranks can use them.

Only `job_validation` applies the rules, and only the command-line tool prints the warnings. A stored job keeps running:
its ranks say themselves that devices are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster_operator.api.validation.cross_field_rules import Breach

if TYPE_CHECKING:
    from trainmaster_operator.api.job_spec import JobSpec

NVIDIA = "nvidia.com/gpu"
_NAMES = (NVIDIA, "amd.com/gpu")
_SHOWN_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_ONE_DEVICE_FOR_EACH_RANK = ("PyTorch", "DeepSpeed", "HuggingFace", "Horovod", "XGBoost")
"""Frameworks whose ranks take one device each. A rank of TensorFlow or JAX uses all devices that it sees."""


def devices_of(container: dict[str, Any]) -> int:
    """Return the number of devices among a container's limits; 0 if there is none or it is no number."""
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    counts = [str(limits[name]) for name in _NAMES if name in limits] if isinstance(limits, dict) else []
    return int(counts[0]) if counts and counts[0].isdigit() else 0


def of_ranks(spec: JobSpec) -> Iterator[Breach]:
    """Yield workers.ranksPerPod if each rank needs a CUDA device and the pod asks for fewer devices than it has
    ranks."""
    if spec.training is None or spec.training.device != "CUDA":
        return
    ranks, devices = spec.workers.ranksPerPod, devices_of(spec.container())
    if 0 < devices < ranks:
        yield (
            ("workers", "ranksPerPod"),
            f"{ranks} ranks need {ranks} GPUs, because training.device is CUDA, but the first container of the "
            f"template asks for {devices}; make the two numbers equal",
        )


def of_clusters(spec: JobSpec) -> Iterator[Breach]:
    """Yield training.device if each rank needs a CUDA device and nothing in the template lets the pod see one. This
    holds on a cluster only: a run on one machine sees the devices of that machine."""
    if spec.training is not None and spec.training.device == "CUDA" and not _may_see_devices(spec):
        yield (
            ("training", "device"),
            "CUDA needs a GPU for each rank, but the first container of the template asks for none; set its "
            f"resources.limits to {{{NVIDIA}: {spec.workers.ranksPerPod}}}, or set device to Auto or CPU",
        )


def _may_see_devices(spec: JobSpec) -> bool:
    """Return True if the template has anything by which a container can get devices: an extended resource of any
    name, a claim of dynamic resource allocation, or the runtime class and the variable by which NVIDIA's container
    runtime shows devices that nobody requested."""
    container, pod = spec.container(), spec.workers.template.get("spec") or {}
    resources = container.get("resources")
    amounts = resources if isinstance(resources, dict) else {}
    variables = [variable.get("name") for variable in container.get("env") or [] if isinstance(variable, dict)]
    return bool(
        any("/" in name for name in amounts.get("limits") or ())
        or amounts.get("claims")
        or pod.get("runtimeClassName")
        or container.get("envFrom")
        or _SHOWN_DEVICES in variables
    )


def warnings(spec: JobSpec) -> Iterator[str]:
    """Yield one sentence if ranks leave devices unused that their pod asks for, or have to share them. The job must be
    valid."""
    ranks, devices = spec.workers.ranksPerPod, devices_of(spec.container())
    if not devices:
        return
    asks = f"each pod asks for {devices} GPU{'' if devices == 1 else 's'}"
    numbers = f"spec.workers.ranksPerPod is {ranks}, but {asks}"
    equal = "make the two numbers equal"
    if spec.training is not None:
        if spec.training.device == "CPU":
            yield (
                f"spec.training.device is CPU, so ranks compute on the CPU, but {asks}; leave device out to use them, "
                "or ask for none"
            )
        elif devices < ranks:
            yield f"{numbers}, so all ranks compute on the CPU; {equal}"
        elif devices > ranks:
            yield f"{numbers}, of which each rank uses one; {equal}"
    elif devices < ranks:
        yield f"{numbers}, so a script that takes the GPU with the number LOCAL_RANK fails; {equal}"
    elif (
        devices > ranks
        and spec.framework.value in _ONE_DEVICE_FOR_EACH_RANK
        and "ranksPerPod" not in spec.workers.model_fields_set
    ):
        yield (
            f"{asks} and has 1 rank, because spec.workers.ranksPerPod is not set; set it to {devices}, or to 1 if a "
            "rank of this script uses all GPUs of its pod"
        )
