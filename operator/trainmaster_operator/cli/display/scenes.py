"""Scenes of runs and of jobs, made from what is stored of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster_operator.cli.display.live_display import Scene
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cluster.port import Object


def scene_of_job(job: Object) -> Scene:
    """Return the scene of a job on a cluster. The manifest is used as it is, because this command may be older than
    the cluster's CRD."""
    return _scene(job, namespace=job["metadata"]["namespace"], out="")


def scene_of_run(resource: Mapping[str, Any], out: Path) -> Scene:
    """Return the scene of a run on this machine, from its status.yaml."""
    return _scene(resource, out=str(out))


def _scene(job: Mapping[str, Any], **fields: Any) -> Scene:
    spec = job.get("spec") or {}
    workers = spec.get("workers") or {}
    return Scene.of_training(
        spec.get("training"),
        name=job["metadata"]["name"],
        world_size=_number(workers.get("replicas")) * _number(workers.get("ranksPerPod")),
        status=state_of(job),
        **fields,
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1
