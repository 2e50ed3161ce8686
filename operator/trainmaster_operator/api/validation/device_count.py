"""The number of devices that a pod asks for, and whether its ranks can use them.

Only `job_validation` applies the rule. A stored job keeps running: its ranks say themselves that devices are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster_operator.api.validation.cross_field_rules import Breach

if TYPE_CHECKING:
    from trainmaster_operator.api.job_spec import JobSpec

NVIDIA = "nvidia.com/gpu"
_NAMES = (NVIDIA, "amd.com/gpu")


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
