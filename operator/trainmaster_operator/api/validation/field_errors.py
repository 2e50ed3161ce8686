"""The errors that pydantic finds in single fields of a job, in words: what is expected there, and what is given.

An unknown field is told with the nearest known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.validation import partial_model
from trainmaster_operator.api.validation.problem import Path, dotted, shown

SHAPES = {
    "sharedMemory": "an amount of memory such as 8Gi or 512Mi",
    "claim": "the name of a PersistentVolumeClaim (lower-case letters, digits, '-' and '.')",
    "hostPath": "an absolute path such as /mnt/checkpoints",
    "managedBy": "a controller's name with its domain, such as kueue.x-k8s.io/multikueue,",
    "limit": "an amount of memory such as 8Gi, or 0 for none,",
}
"""What a field with a pattern must contain, in words, because a regular expression is not readable in an error
message."""

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


def described(kind: str, context: dict[str, Any], given: Any, path: Path) -> str:
    """Return one pydantic error of a field in words."""
    if kind == "missing":
        return f"is missing{_meaning(path)}"
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        return f"{words} {_number(context[key])} is expected, not {shown(given)}"
    if kind in ("literal_error", "enum"):
        known = re.findall(r"'([^']*)'", str(context["expected"]))
        if given is False and "Off" in known:
            return f'one of {", ".join(known)} is expected; YAML reads Off without quotes as false, so write "Off"'
        near = nearest(str(given), known)
        hint = f"; did you mean {near}?" if near else ""
        return f"one of {', '.join(known)} is expected, not {shown(given)}{hint}"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters are expected, not {len(given)}"
    if kind == "string_too_short":
        return f"is empty{_meaning(path)}"
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


def unknown_field(path: Path) -> str:
    """Return the message for an unknown field. It suggests the nearest name in this map; otherwise the place where this
    name is known; otherwise the nearest name in a map of the same name elsewhere (checkpoint exists in the job and in
    its training); otherwise it lists the names of this map."""
    name = str(path[-1])
    model = _model_at(path[:-1])
    known = _names(model) if model else []
    near = meant(path)
    if near:
        return f"unknown field; did you mean {near}?"
    elsewhere = [place for place in _places() if place[-1] == name]
    if elsewhere:
        return f"unknown field here; {dotted(elsewhere[0])} is known"
    alike = [place for place in _places() if place[-2:-1] == path[-2:-1] and nearest(name, [str(place[-1])])]
    if alike:
        return f"unknown field here; did you mean {dotted(alike[0])}?"
    return f"unknown field; known here: {', '.join(known)}"


def meant(path: Path) -> str | None:
    """Return the field of the same map that an unknown field is probably meant to be, or None."""
    model = _model_at(path[:-1])
    return nearest(str(path[-1]), _names(model) if model else [])


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name that is most like `name`, or None if none is like it."""
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


def _meaning(path: Path) -> str:
    """Return the first sentence of the description of a field as a clause, or "" if it has no description."""
    model = _model_at(path[:-1])
    field = next((f for n, f in model.model_fields.items() if (f.alias or n) == path[-1]), None) if model else None
    return f": {field.description.split('. ')[0].rstrip('.')}" if field and field.description else ""


def _number(value: Any) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
    return str(int(value)) if whole else f"{value:g}"
