"""The spelling of v1alpha1 before its first release: how it is refused, and how it is rewritten.

No code reads a job in this spelling. `job_validation` uses the tables to name the present field, and `trainmaster
migrate` uses them to rewrite a manifest.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.validation.problem import Path, dotted, shown

MOVED: dict[Path, Path] = {
    ("spec", "training", "parallelism", "dp_replicate"): ("spec", "training", "parallelism", "dpReplicate"),
    ("spec", "training", "parallelism", "dp_shard"): ("spec", "training", "parallelism", "dpShard"),
    ("spec", "training", "checkpoint", "every"): ("spec", "checkpoint", "every"),
    ("spec", "training", "checkpoint", "keep"): ("spec", "checkpoint", "keep"),
    ("spec", "training", "checkpoint", "keepBest"): ("spec", "checkpoint", "keepBest"),
}
"""Fields that were moved or renamed: the former path, and the present one."""

NULLS: dict[Path, tuple[Path, Any]] = {
    ("spec", "training", "optimizer", "clipNorm"): (("spec", "training", "optimizer", "clipNorm"), 0),
    ("spec", "recovery", "hang", "limitSeconds"): (("spec", "recovery", "hang", "mode"), "Off"),
    ("spec", "scheduling", "releaseSeconds"): (("spec", "scheduling", "releaseSeconds"), 0),
}
"""Fields in which null had a meaning: the former path, and the present path and value with that meaning."""

VALUES: dict[Path, dict[Any, Any]] = {
    ("spec", "training", "optimizer", "schedule"): {"cosine": "Cosine", "constant": "Constant"},
}
"""Values that are spelled differently now, by field."""

_BLOCK: Path = ("spec", "training", "checkpoint")
_OPEN = ("template", "options")
"""Maps whose content other software defines; nothing in them is rewritten."""


@dataclass(frozen=True)
class Change:
    """One field of a manifest that was rewritten."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}"


def refusal(path: Path, given: Any) -> str | None:
    """Return the present name of a field in the former spelling, as a sentence without a full stop. Return None for any
    other field."""
    end = "trainmaster migrate rewrites the file"
    if path == _BLOCK:
        return f"every, keep and keepBest are fields of spec.checkpoint now; {end}"
    if path in MOVED:
        return f"this field is called {dotted(MOVED[path])} now; {end}"
    if path in NULLS and given is None:
        now, value = NULLS[path]
        return f"null has no meaning, because clients drop it; {dotted(now)}: {json.dumps(value)} says this now; {end}"
    return None


def fields(spec: Any) -> list[str]:
    """Return the paths of the fields of a stored spec that are in the former spelling. Return [] for a spec of this
    version."""
    document = {"spec": spec}
    found = [path for path in MOVED if path[-1] in (_map(document, path[:-1]) or {})]
    found += [path for path in NULLS if (_map(document, path[:-1]) or {}).get(path[-1], ...) is None]
    for path, values in VALUES.items():
        given = (_map(document, path[:-1]) or {}).get(path[-1])
        if isinstance(given, str) and given in values:
            found.append(path)
    found += _fractions(spec, ("spec",))
    return [dotted(path) for path in found]


def migrated(document: dict[str, Any]) -> tuple[dict[str, Any], list[Change]]:
    """Return a copy of a manifest in the present spelling, and a list of what was changed. The given manifest is not
    modified."""
    result: dict[str, Any] = copy.deepcopy(document)
    changes = [*_moved(result), *_without_nulls(result), *_renamed(result), *_whole(result.get("spec"), ("spec",))]
    return result, changes


def _moved(document: dict[str, Any]) -> Iterator[Change]:
    for old, new in MOVED.items():
        above = _map(document, old[:-1])
        if above is None or old[-1] not in above:
            continue
        _set(document, new, above.pop(old[-1]))
        yield Change(old, f"is {dotted(new)} now")
    training = _map(document, _BLOCK[:-1])
    if training is not None and training.get(_BLOCK[-1], ...) in ({}, None):
        del training[_BLOCK[-1]]


def _without_nulls(document: dict[str, Any]) -> Iterator[Change]:
    for old, (new, value) in NULLS.items():
        above = _map(document, old[:-1])
        if above is None or above.get(old[-1], ...) is not None:
            continue
        del above[old[-1]]
        _set(document, new, value)
        yield Change(old, f"null is {dotted(new)}: {json.dumps(value)} now")


def _renamed(document: dict[str, Any]) -> Iterator[Change]:
    for path, values in VALUES.items():
        above = _map(document, path[:-1])
        given = above.get(path[-1]) if above is not None else None
        if above is not None and isinstance(given, str) and given in values:
            above[path[-1]] = values[given]
            yield Change(path, f"{given} is {values[given]} now")


def _whole(value: Any, path: Path) -> Iterator[Change]:
    """Round fractions of seconds up to whole seconds, in place, and yield each change."""
    if not isinstance(value, dict):
        return
    for key, child in value.items():
        if key.endswith("Seconds") and isinstance(child, float) and math.isfinite(child):
            value[key] = math.ceil(child)
            yield Change((*path, key), f"{shown(child)} is {value[key]} now, since seconds are whole numbers")
        elif key not in _OPEN:
            yield from _whole(child, (*path, key))


def _fractions(value: Any, path: Path) -> Iterator[Path]:
    """Yield the paths of fields with a fraction of seconds. A whole number may be written as 30.0."""
    if not isinstance(value, dict):
        return
    for key, child in value.items():
        if isinstance(key, str) and key.endswith("Seconds") and isinstance(child, float) and not child.is_integer():
            yield (*path, key)
        elif key not in _OPEN:
            yield from _fractions(child, (*path, key))


def _map(document: Any, path: Path) -> dict[Any, Any] | None:
    for part in path:
        if not isinstance(document, dict):
            return None
        document = document.get(part)
    return document if isinstance(document, dict) else None


def _set(document: dict[str, Any], path: Path, value: Any) -> None:
    """Set a field and create the maps above it that are missing."""
    place: Any = document
    for part in path[:-1]:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    place[path[-1]] = value
