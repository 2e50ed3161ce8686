"""One problem of a job, and functions that show paths and values as a person would write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One problem of a job. `message` is a sentence without the path and without a full stop."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


def dotted(path: Path) -> str:
    """Return a path as text: ("spec", "containers", 0) -> "spec.containers[0]"."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def in_one_line(error: ValidationError) -> str:
    """Return the errors of a manifest that passed the schema of the API server and is invalid all the same."""
    return "; ".join(f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors())


def placed(words: str) -> tuple[Path, str]:
    """Split a sentence that begins with the path of a field, as in `batch.micro: …`, into path and rest. The path is ()
    if the sentence begins without one."""
    place, colon, rest = words.partition(": ")
    return (tuple(place.split(".")), rest) if colon and " " not in place else ((), words)


def instead(value: Any) -> str:
    """Return the given value as a clause, such as ", not 4". Return "" for None."""
    return f", not {shown(value)}" if value is not None else ""


def shown(value: Any) -> str:
    """Return a value as a person would write it, in at most 80 characters."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
