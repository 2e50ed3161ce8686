"""Base classes of all parts of the config, and the types that several parts share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Device = Literal["Auto", "CPU", "CUDA", "MPS"]
Recompute = Literal["None", "Full", "Selective", "Reversible"]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""The share that a moving average keeps in each step."""
STEPS = 2**53
"""The most steps that a field can say: what a JSON number holds exactly."""
RANKS = 2**31
"""The highest degree of an axis."""


class Strict(BaseModel):
    """Unknown fields are errors; the wire names are camelCase only where Kubernetes' own are."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True, serialize_by_alias=True)


class Grown(Strict):
    """A model that got fields since trainers of the first images were made: those are not written at their default."""

    since: ClassVar[frozenset[str]]

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is left out: trainers of images that don't know it would refuse it."""
        fields: dict[str, Any] = serialize(self)
        defaults = {name: type(self).model_fields[name].default for name in self.since}
        return {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}
