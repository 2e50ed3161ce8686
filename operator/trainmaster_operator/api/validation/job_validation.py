"""The problems of a job in words: all of them at once, each with its place and with what would be right.

The models decide what is valid; this module only calls them, and `field_errors` puts their errors into words. The
place of a field is a path such as `spec.training.batch.global`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainmaster_operator.api import job_name
from trainmaster_operator.api.api_group import API_VERSION, JOB_KIND
from trainmaster_operator.api.checkpoint_spec import CheckpointSpec
from trainmaster_operator.api.job_spec import DistributedTrainingJob, JobSpec
from trainmaster_operator.api.validation import (
    cross_field_rules,
    device_count,
    field_errors,
    former_spelling,
    launch_command,
    partial_model,
    pod_template,
    unused_options,
)
from trainmaster_operator.api.validation.problem import Path, Problem, dotted, instead, placed, shown

_METADATA = (
    *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers"),
    *("generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences"),
    *("resourceVersion", "selfLink", "uid"),
)
_ABSENT = object()

__all__ = ["Path", "Problem", "dotted", "validate"]


_SPEC: Path = ("spec",)
_TRAINING: Path = ("spec", "training")


def validate(document: Any, *, sized: bool = True, on_cluster: bool = False) -> list[Problem]:
    """Return all problems of a job as a person wrote it (JSON values), sorted by path; [] if the job is valid.

    A status in the document is ignored, as an API server does. `sized`: also check that the parallelism and the batch
    fit the number of ranks. `on_cluster`: also check rules for jobs on a cluster, where a job without storage saves
    nothing and a pod sees only the devices that it asks for.
    """
    if not isinstance(document, dict):
        return [Problem((), f"a {JOB_KIND} is expected, not {shown(document)}")]
    if document.get("kind") not in (JOB_KIND, None):
        return [Problem(("kind",), f"{JOB_KIND} is expected, not {shown(document['kind'])}")]
    document = {key: value for key, value in document.items() if key != "status"}
    problems = list(_not_finite(document, ()))
    if problems:
        return problems
    problems += _metadata(document.get("metadata"))
    mounted = _at(document, ("spec", "checkpoint"))
    mounts = (
        partial_model.collect_findings(lambda: _mounts(partial_model.read(CheckpointSpec, mounted)))
        if isinstance(mounted, dict)
        else []
    )
    bad_template = list(pod_template.problems(_at(document, ("spec", "workers", "template")), dict(mounts)))
    problems += bad_template
    if bad_template:
        document = _with_usable_template(document)
    problems += _fields(document)
    problems += _across(document.get("spec"), sized, on_cluster)
    return _in_order(problems)


def _mounts(checkpoint: CheckpointSpec) -> Iterator[tuple[str, str]]:
    if checkpoint.volume:
        yield checkpoint.mount_path, "checkpoints"


def _in_order(problems: list[Problem]) -> list[Problem]:
    unique = {(problem.path, problem.message): problem for problem in problems}
    return sorted(unique.values(), key=lambda problem: [(isinstance(part, str), str(part)) for part in problem.path])


def _with_usable_template(document: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(document))
    script = copied["spec"].get("framework", "Trainmaster") != "Trainmaster"
    copied["spec"]["workers"]["template"] = {"spec": {"containers": [{"command": ["true"]} if script else {}]}}
    return copied


def _fields(document: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problems that the models find in single fields, and across the fields of one map."""
    document = {"apiVersion": None, "kind": None, **document}
    try:
        # Validate as strict JSON: "4" is no number and 4.5 is no integer, as for an API server.
        DistributedTrainingJob.model_validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A field with a typing error is reported once: where it is, and not also as missing.
        mistyped = {_meant(tuple(one["loc"])) for one in details if one["type"] == "extra_forbidden"}
        for detail in details:
            if detail["type"] == "missing" and tuple(detail["loc"]) in mistyped:
                continue
            problem = _translate(detail, document)
            if problem is not None:
                yield problem


def _meant(path: Path) -> Path:
    return (*path[:-1], field_errors.meant(path) or "")


def _translate(detail: ErrorDetails, document: dict[str, Any]) -> Problem | None:
    path = tuple(detail["loc"])
    kind = detail["type"]
    context = detail.get("ctx", {})
    given = detail["input"]
    if path == ("apiVersion",):
        return Problem(path, f"{API_VERSION} is expected{instead(given)}")
    if path == ("kind",):
        return Problem(path, f"{JOB_KIND} is expected{instead(given)}")
    if path and path[0] == "metadata":
        return (
            None
            if path in (("metadata",), ("metadata", "name"))
            else Problem(path, field_errors.described(kind, context, given, path))
        )
    if words := former_spelling.refusal(path, given):
        return Problem(path, words)
    if kind == "value_error":
        # `_across` reports the rules of these two models: all violations, each at the field that a person would change.
        return None if path in (_SPEC, _TRAINING) else Problem(path, str(context.get("error", detail["msg"])))
    if kind == "extra_forbidden":
        return Problem(path, field_errors.unknown_field(path))
    return Problem(path, field_errors.described(kind, context, given, path))


def _metadata(metadata: Any) -> Iterator[Problem]:
    if not isinstance(metadata, dict):
        yield Problem(("metadata",), "a map with a name is expected" + ("" if metadata is None else instead(metadata)))
        return
    for key in metadata:
        if key not in _METADATA:
            near = field_errors.nearest(str(key), list(_METADATA))
            yield Problem(("metadata", str(key)), "unknown field" + (f"; did you mean {near}?" if near else ""))
    name = metadata.get("name", _ABSENT)
    path: Path = ("metadata", "name")
    if name is _ABSENT:
        yield Problem(path, "is missing: the job's name")
    elif (words := job_name.refusal(name)) is not None:
        yield Problem(path, words)


def _across(value: Any, sized: bool, on_cluster: bool) -> Iterator[Problem]:
    """Yield the problems across fields, as far as the fields themselves are valid."""
    if not isinstance(value, dict):
        return
    spec = partial_model.read(JobSpec, value)
    of_degrees = (cross_field_rules.of_size, *unused_options.RULES_OF_DEGREES) if sized else ()
    of_clusters = (*unused_options.RULES_OF_CLUSTERS, device_count.of_clusters) if on_cluster else ()
    for rule in (
        *cross_field_rules.RULES,
        *unused_options.RULES,
        *of_clusters,
        launch_command.of_launcher,
        device_count.of_ranks,
        *of_degrees,
    ):
        for path, words in partial_model.collect_findings(lambda rule=rule: rule(spec)):  # type: ignore[misc]
            yield Problem((*_SPEC, *path), words)
    training = getattr(spec, "training", None)
    for refusal in training.refusals() if training is not None else ():
        for told in partial_model.collect_findings(lambda refusal=refusal: filter(None, [refusal()])):  # type: ignore[misc]
            place, words = placed(told)
            yield Problem((*_TRAINING, *place), words)


def _at(document: Any, path: Path) -> Any:
    for part in path:
        if not isinstance(document, dict) or part not in document:
            return _ABSENT
        document = document[part]
    return document


def _not_finite(value: Any, path: Path) -> Iterator[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"a finite number is expected, not {value}")
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _not_finite(child, (*path, str(key)))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from _not_finite(child, (*path, i))
