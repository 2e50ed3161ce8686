"""A model without the fields that are invalid, so that rules across the other fields can run.

An invalid field is absent from such a model. A rule that needs it fails with AttributeError and reports nothing;
another check reports the field itself.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def read(model: type[M], value: dict[str, Any]) -> M:
    """Return `value`, JSON as a person wrote it, as a model without its invalid fields. Unknown fields are left out."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in value:
            if not field.is_required():
                fields[name] = field.get_default(call_default_factory=True)
            continue
        given, inner = value[key], model_in(field.annotation, in_lists=False)
        try:
            fields[name] = _adapter(model, name).validate_json(json.dumps(given), strict=True)
        except ValidationError:
            if inner is not None and isinstance(given, dict):
                fields[name] = read(inner, given)
    found = model.model_construct(**fields)
    for name in model.model_fields:
        if name not in fields:
            found.__dict__.pop(name, None)  # `model_construct` has set the default of a field that is invalid.
    return found


def collect_findings(rule: Callable[[], Iterable[T]]) -> list[T]:
    """Return what `rule` yields from a partial model until it needs a field that is absent."""
    found: list[T] = []
    try:
        for each in rule():
            found.append(each)
    except AttributeError as error:
        if not (isinstance(error.obj, BaseModel) and error.name in type(error.obj).model_fields):
            raise
    return found


def model_in(annotation: Any, *, in_lists: bool = True) -> type[BaseModel] | None:
    """Return the model in `X`, `X | None`, `list[X]` and the like. Return None if there is none. `in_lists`: also if it
    is that of the entries of a list."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, *((list,) if in_lists else ())):
        found = [model_in(option, in_lists=in_lists) for option in typing.get_args(annotation)]
        return next((model for model in found if model), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


@cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    kind: Any = field.annotation
    return TypeAdapter(Annotated[(kind, *field.metadata)] if field.metadata else kind)
