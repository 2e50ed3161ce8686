"""`trainmaster validate`: a job from its file, or everything that is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from trainmaster_operator.api import validation
from trainmaster_operator.api.job import DistributedTrainingJob
from trainmaster_operator.cli import image
from trainmaster_operator.cli.document import Document, load
from trainmaster_operator.cli.refusal import Refusal


def load_job(file: Path) -> tuple[Document, DistributedTrainingJob]:
    """Raises Refusal with all problems of the job, one a line."""
    document = load(file)
    problems = validation.validate(document.value)
    spec = document.value.get("spec") if isinstance(document.value, dict) else None
    if isinstance(spec, dict):
        problems += image.option_problems(spec.get("training"))
    refuse(document, problems)
    job = DistributedTrainingJob.model_validate({k: v for k, v in document.value.items() if k != "status"})
    if job.spec.training is not None:
        refuse(document, image.layout_problems(job.spec.training))
    return document, job


def refuse(document: Document, problems: Iterable[validation.Problem]) -> None:
    """Raises Refusal with the problems in the order of their lines, if there are any."""
    told = sorted(problems, key=lambda problem: document.line(problem.path))
    if told:
        raise Refusal(*[document.told(problem) for problem in told])


def validate(file: Path) -> int:
    _, job = load_job(file)
    ranks = job.spec.world_size
    sys.stdout.write(f"{file}: job {job.metadata.name} is valid ({ranks} rank{'s' if ranks != 1 else ''})\n")
    return 0
