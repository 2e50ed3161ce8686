"""A job around a fragment of YAML that a page shows, so that the product's own validation can be asked about it."""

from __future__ import annotations

import math
from typing import Any

import yaml

from tests import kubernetes_schemas
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.validation import device_count, job_validation
from trainmaster_operator.cli.this_machine import trainer_checks

KIND = "DistributedTrainingJob"

_TRAINING = {
    "model": {"name": "gpt", "options": {"layers": 8, "heads": 32, "width": 256, "context": 128}},
    "data": {"source": "text", "path": "/data/texts"},
    "steps": 1000,
    "batch": {"global": 512},
}
_SCRIPT = {"template": {"spec": {"containers": [{"name": "worker", "command": ["python", "train.py"]}]}}}
_FIELDS = ("training", "recovery", "workers", "checkpoint")
"""Fields of a spec with which a fragment may begin."""


def complete(fragment: Any) -> dict[str, Any]:
    """Return a whole job that says what `fragment` does, and of all else no more than a job needs.

    Raises ValueError for YAML that is no part of a job.
    """
    if not isinstance(fragment, dict):
        raise ValueError("a map of fields is expected")
    if fragment.get("kind") == KIND:
        return fragment
    if not fragment or not set(fragment) <= {"spec", *_FIELDS}:
        raise ValueError(f"{', '.join(fragment)}: neither a {KIND} nor a part of its spec")
    given = fragment.get("spec", fragment)
    base: dict[str, Any] = {"workers": {"replicas": 1}}
    if given.get("framework", "Trainmaster") != "Trainmaster":
        base["workers"] |= _SCRIPT
    else:
        base["training"] = _TRAINING
    degrees = (given.get("training") or {}).get("parallelism") or {}
    base["workers"]["replicas"] = math.prod(value for value in degrees.values() if isinstance(value, int))
    if "Shrink" in str(given.get("recovery")):  # no other action needs a smaller size
        base["workers"] |= {"replicas": 2, "min": 1}
    name = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": KIND, "metadata": {"name": "job"}}
    return {**name, "spec": _merged(base, given)}


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}


def problems_of_block(text: str) -> list[str]:
    """Return all that is wrong with a block of YAML: jobs, parts of one, or objects that Kubernetes itself knows.

    Raises ValueError for YAML that is none of these.
    """
    found = []
    for document in yaml.safe_load_all(text):
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind in (None, KIND):
            found += problems(complete(document))
            continue
        if problem := kubernetes_schemas.problem(document):
            found.append(f"{kind}: {problem}")
    return found


def warnings_of_block(text: str) -> list[str]:
    """Return what is said of the GPUs of the jobs, or parts of jobs, in a valid block of YAML."""
    jobs = [complete(document) for document in yaml.safe_load_all(text) if document.get("kind") in (None, KIND)]
    specs = [DistributedTrainingJob.model_validate(job).spec for job in jobs]
    return [words for spec in specs for words in device_count.warnings(spec)]


def problems(job: dict[str, Any]) -> list[str]:
    """Return all that the product finds wrong with a job, but for files that aren't on this machine."""
    found = [*job_validation.validate(job), *trainer_checks.option_problems(job["spec"].get("training"))]
    if not found:
        training = DistributedTrainingJob.model_validate(job).spec.training
        found = [*trainer_checks.layout_problems(training)] if training is not None else []
    return [str(problem) for problem in found]
