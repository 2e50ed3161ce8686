"""The options of a model or a data source: open maps in the job, typed models here.

Neither torch nor numpy is imported, so that the command line can check a job without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from trainmaster.errors import ConfigError, unknown


class Options(BaseModel):
    """The base class of all options. Numbers in quotes are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


O = TypeVar("O", bound=Options)  # noqa: E741


def read(cls: type[O], values: Mapping[str, Any], where: str) -> O:
    """Return `values` as options. Raises ConfigError with everything that is wrong, one sentence per line."""
    try:
        return cls(**values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            path = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                lines.append(unknown(where, path, cls.model_fields))
                continue
            message = problem["msg"].removeprefix("Value error, ")
            place = f"{where}.{path}" if path else where
            lines.append(f"{place}: {message}; got {problem['input']!r:.80}" if path else f"{place}: {message}")
        raise ConfigError("\n".join(lines)) from None
