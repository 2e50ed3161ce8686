"""The spelling of v1alpha1 before its first release: its fields, and how they are refused.

No code reads a job in this spelling. `job_validation` uses the tables to name the present field, and `trainmaster
migrate` uses them to rewrite a manifest (`migrate_job`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainmaster_operator.api.validation.problem import Path, dotted

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

BLOCK: Path = ("spec", "training", "checkpoint")
"""A map whose fields have all moved."""

OPEN = ("template", "options")
"""Maps whose content other software defines; nothing in them is rewritten."""


def refusal(path: Path, given: Any) -> str | None:
    """Return the present name of a field in the former spelling, as a sentence without a full stop. Return None for any
    other field."""
    end = "trainmaster migrate rewrites the file"
    if path == BLOCK:
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
    found = [path for path in MOVED if path[-1] in (map_at(document, path[:-1]) or {})]
    found += [path for path in NULLS if (map_at(document, path[:-1]) or {}).get(path[-1], ...) is None]
    for path, values in VALUES.items():
        given = (map_at(document, path[:-1]) or {}).get(path[-1])
        if isinstance(given, str) and given in values:
            found.append(path)
    found += _fractions(spec, ("spec",))
    return [dotted(path) for path in found]


def _fractions(value: Any, path: Path) -> Iterator[Path]:
    """Yield the paths of fields with a fraction of seconds. A whole number may be written as 30.0."""
    if not isinstance(value, dict):
        return
    for key, child in value.items():
        if isinstance(key, str) and key.endswith("Seconds") and isinstance(child, float) and not child.is_integer():
            yield (*path, key)
        elif key not in OPEN:
            yield from _fractions(child, (*path, key))


def map_at(document: Any, path: Path) -> dict[Any, Any] | None:
    """Return the map at this path of a document, or None if there is no map."""
    for part in path:
        if not isinstance(document, dict):
            return None
        document = document.get(part)
    return document if isinstance(document, dict) else None
