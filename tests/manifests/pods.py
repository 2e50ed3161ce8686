"""One pod of a job, as an operator makes it whose job has just begun."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.manifests import PodDefaults, fill_pod, render_pod


def build_pod(
    job: DistributedTrainingJob, role: str, slot: int, incarnation: int, defaults: PodDefaults
) -> dict[str, Any]:
    rendered = render_pod(job, role, defaults)
    return fill_pod(rendered, slot, incarnation, defaults, avoid=())
