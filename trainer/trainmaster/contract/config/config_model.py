"""Base classes of all parts of the training config, and the types that several parts share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Device = Literal["Auto", "CPU", "CUDA", "MPS"]
Recompute = Literal["None", "Full", "Selective", "Reversible"]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""The share that a moving average keeps in each step, from 0 up to but not including 1."""
STEPS = 2**53
"""The largest number of steps that a field accepts: a JSON number holds every integer up to it exactly."""
RANKS = 2**31
"""The largest degree of an axis that a field accepts."""


class Strict(BaseModel):
    """The base class of all parts of the config: immutable, and it refuses unknown fields.

    Fields are named as in the YAML of a job; a field whose name is a Python keyword has an alias.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True, serialize_by_alias=True)


class Grown(Strict):
    """A part of the config that has got new fields (`since`) since the trainers of the first images were made.

    A new field is not written while it has its default, because an older trainer would refuse it as unknown.
    """

    since: ClassVar[frozenset[str]]

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields as JSON values, without the fields of `since` that have their defaults."""
        fields: dict[str, Any] = serialize(self)
        defaults = {name: type(self).model_fields[name].default for name in self.since}
        return {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}
