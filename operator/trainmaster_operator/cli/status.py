"""`trainmaster status OUT`: how a run stands, from its status.yaml."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from trainmaster_operator.api.status import JobStatus
from trainmaster_operator.cli import display, output
from trainmaster_operator.cli.refusal import Refusal


def status(out: Path) -> int:
    """Raises Refusal when there is no run."""
    resource = output.read_status(out) if out.is_dir() else None
    if resource is None:
        raise Refusal(f"{out}: holds no run; the output folder of one is expected, with its {output.STATUS}")
    job = JobStatus.model_validate(resource.get("status") or {})
    training = resource["spec"].get("training") or {}
    scene = display.Scene(resource["metadata"]["name"], 0, str(out), training.get("steps"), job)
    console = Console(file=sys.stdout, highlight=False)
    console.print(f"{scene.name}: {job.phase.value}  {display.describe(scene)}")
    display.summary(scene, console, str(out / output.REPORT))
    return 0
