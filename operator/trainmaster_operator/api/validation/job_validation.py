"""The problems of a job in words: all of them at once, each with its place and with what would be right.

The models decide what is valid; this module only calls them and translates their errors. The place of a field is a path
such as `spec.training.batch.global`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainmaster_operator.api.api_group import API_VERSION, JOB_KIND
from trainmaster_operator.api.crd import NAME_LIMIT, NAME_PATTERN
from trainmaster_operator.api.job_spec import SHAPES, CheckpointSpec, DistributedTrainingJob, JobSpec
from trainmaster_operator.api.validation import (
    cross_field_rules,
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
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "str": "text",
    "dict": "a map",
    "model": "a map",
    "list": "a list",
    "tuple": "a list",
}
_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_ABSENT = object()

__all__ = ["Path", "Problem", "dotted", "validate"]


_SPEC: Path = ("spec",)
_TRAINING: Path = ("spec", "training")


def validate(document: Any, *, sized: bool = True, on_cluster: bool = False) -> list[Problem]:
    """Return all problems of a job as a person wrote it (JSON values), sorted by path; [] if the job is valid.

    A status in the document is ignored, as an API server does. `sized`: also check that the parallelism and the batch
    fit the number of ranks. `on_cluster`: also check rules for jobs on a cluster, where a job without storage saves
    nothing.
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
        for detail in error.errors(include_url=False):
            problem = _translate(detail, document)
            if problem is not None:
                yield problem


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
            None if path in (("metadata",), ("metadata", "name")) else Problem(path, _said(kind, context, given, path))
        )
    if words := former_spelling.refusal(path, given):
        return Problem(path, words)
    if kind == "value_error":
        # `_across` reports the rules of these two models: all violations, each at the field that a person would change.
        return None if path in (_SPEC, _TRAINING) else Problem(path, str(context.get("error", detail["msg"])))
    if kind == "extra_forbidden":
        return Problem(path, _unknown(path))
    return Problem(path, _said(kind, context, given, path))


def _said(kind: str, context: dict[str, Any], given: Any, path: Path) -> str:
    """Return one pydantic error of a field in words."""
    if kind == "missing":
        return f"is missing{_described(path)}"
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        return f"{words} {_number(context[key])} is expected, not {shown(given)}"
    if kind in ("literal_error", "enum"):
        known = re.findall(r"'([^']*)'", str(context["expected"]))
        if given is False and "Off" in known:
            return f'one of {", ".join(known)} is expected; YAML reads Off without quotes as false, so write "Off"'
        near = _nearest(str(given), known)
        hint = f"; did you mean {near}?" if near else ""
        return f"one of {', '.join(known)} is expected, not {shown(given)}{hint}"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters are expected, not {len(given)}"
    if kind == "string_too_short":
        return f"is empty{_described(path)}"
    if kind in ("too_long", "too_short"):
        return f"{_count(context)} entries are expected, not {context['actual_length']}"
    if kind == "string_pattern_mismatch":
        return f"{SHAPES.get(str(path[-1]), 'text of another form')} is expected, not {shown(given)}"
    word = _WORDS.get(kind.split("_")[0])
    if word is not None:
        if kind.startswith("int") and str(path[-1]).endswith("Seconds"):
            word = f"{word} of seconds"
        return f"{word} is expected, not {shown(given)}"
    return f"{kind.replace('_', ' ')}: {shown(given)}"


def _count(context: dict[str, Any]) -> str:
    return f"at most {context['max_length']}" if "max_length" in context else f"at least {context['min_length']}"


def _unknown(path: Path) -> str:
    """Return the message for an unknown field. It suggests the nearest name in this map; otherwise the place where this
    name is known; otherwise the nearest name in a map of the same name elsewhere (checkpoint exists in the job and in
    its training); otherwise it lists the names of this map."""
    name = str(path[-1])
    model = _model_at(path[:-1])
    known = _names(model) if model else []
    near = _nearest(name, known)
    if near:
        return f"unknown field; did you mean {near}?"
    elsewhere = [place for place in _places() if place[-1] == name]
    if elsewhere:
        return f"unknown field here; {dotted(elsewhere[0])} is known"
    alike = [place for place in _places() if place[-2:-1] == path[-2:-1] and _nearest(name, [str(place[-1])])]
    if alike:
        return f"unknown field here; did you mean {dotted(alike[0])}?"
    return f"unknown field; known here: {', '.join(known)}"


def _nearest(name: str, known: list[str]) -> str | None:
    lower = {k.lower().replace("_", ""): k for k in known}
    found = difflib.get_close_matches(name.lower().replace("_", ""), list(lower), n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(path: Path) -> type[BaseModel] | None:
    model: type[BaseModel] | None = DistributedTrainingJob
    for part in path:
        if model is None:
            return None
        if isinstance(part, int):
            continue  # An index of a list has no model of its own: the model of the items follows.
        field = next((f for name, f in model.model_fields.items() if (f.alias or name) == part), None)
        model = partial_model.model_in(field.annotation) if field else None
    return model


def _places(model: type[BaseModel] = DistributedTrainingJob, above: Path = ()) -> Iterator[Path]:
    """Yield the path of every field of a job except its status."""
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        if path == ("status",):
            continue
        yield path
        child = partial_model.model_in(field.annotation)
        if child:
            yield from _places(child, path)


def _described(path: Path) -> str:
    """Return the first sentence of the description of a field as a clause, or "" if it has no description."""
    model = _model_at(path[:-1])
    field = next((f for n, f in model.model_fields.items() if (f.alias or n) == path[-1]), None) if model else None
    return f": {field.description.split('. ')[0].rstrip('.')}" if field and field.description else ""


def _metadata(metadata: Any) -> Iterator[Problem]:
    if not isinstance(metadata, dict):
        yield Problem(("metadata",), "a map with a name is expected" + ("" if metadata is None else instead(metadata)))
        return
    for key in metadata:
        if key not in _METADATA:
            near = _nearest(str(key), list(_METADATA))
            yield Problem(("metadata", str(key)), "unknown field" + (f"; did you mean {near}?" if near else ""))
    name = metadata.get("name", _ABSENT)
    path: Path = ("metadata", "name")
    if name is _ABSENT:
        yield Problem(path, "is missing: the job's name")
    elif not isinstance(name, str):
        yield Problem(path, f"text is expected, not {shown(name)}")
    elif len(name) > NAME_LIMIT:
        yield Problem(
            path, f"at most {NAME_LIMIT} characters are expected, not {len(name)}: hostnames are made from it"
        )
    elif not re.fullmatch(NAME_PATTERN, name):
        better = re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", re.sub(r"[^a-z0-9]+", "-", name.lower()))
        hint = f", for example {better}" if better else ""
        yield Problem(
            path,
            f"lower-case letters, digits and '-' are expected, from a letter to a letter or digit{hint}; "
            f"not {shown(name)}",
        )


def _across(value: Any, sized: bool, on_cluster: bool) -> Iterator[Problem]:
    """Yield the problems across fields, as far as the fields themselves are valid."""
    if not isinstance(value, dict):
        return
    spec = partial_model.read(JobSpec, value)
    of_degrees = (cross_field_rules.of_size, *unused_options.RULES_OF_DEGREES) if sized else ()
    of_clusters = unused_options.RULES_OF_CLUSTERS if on_cluster else ()
    for rule in (
        *cross_field_rules.RULES,
        *unused_options.RULES,
        *of_clusters,
        launch_command.of_launcher,
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


def _number(value: Any) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
    return str(int(value)) if whole else f"{value:g}"
