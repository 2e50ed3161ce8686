"""`trainmaster migrate`: a manifest with the field names of this version."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster_operator.api.api_group import JOB_KIND
from trainmaster_operator.api.validation.former_spelling import BLOCK, MOVED, NULLS, OPEN, VALUES, map_at
from trainmaster_operator.api.validation.problem import Path as FieldPath
from trainmaster_operator.api.validation.problem import dotted, shown
from trainmaster_operator.cli.job_files import job_document
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import former_status

_APPLIED = (
    r"kubectl get dtj {name} -o jsonpath='{{.metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration}}'"
)


@dataclass(frozen=True)
class Change:
    """One field of a manifest that was rewritten."""

    path: FieldPath
    message: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}"


def migrate(file: Path) -> int:
    """Print the manifest to standard output, and what was changed to standard error. Return 0. Raise Refusal."""
    found = job_document.load(file)
    kind = found.value.get("kind") if isinstance(found.value, dict) else found.value
    if kind != JOB_KIND:
        raise Refusal(f"{file}: a {JOB_KIND} is expected, not {shown(kind)}")
    if former_status(found.value.get("status")):
        _warn_of_dropped_fields(file, found.value)
    value, changes = migrated(found.value)
    if not changes:
        sys.stdout.write(found.text)
        sys.stderr.write(f"{file}: nothing has to be changed\n")
        return 0
    sys.stdout.write(job_document.dump(value))
    for change in changes:
        sys.stderr.write(f"{file}:{found.line(change.path)}: {change}\n")
    sys.stderr.write(f"{file}: comments are not kept\n")
    return 0


def _warn_of_dropped_fields(file: Path, job: dict[str, Any]) -> None:
    """Warn about a job that was read from a cluster: it may lack the fields to migrate, because an API server
    neither shows nor stores fields that are not in its present definition."""
    meta = job.get("metadata")
    name = meta.get("name", "NAME") if isinstance(meta, dict) else "NAME"
    sys.stderr.write(
        f"{file}: this was read from a cluster, which drops fields of the former spelling once its CRD is upgraded. "
        f"Migrate the manifest that was applied instead: {_APPLIED.format(name=name)}\n"
    )


def migrated(document: dict[str, Any]) -> tuple[dict[str, Any], list[Change]]:
    """Return a copy of a manifest in the present spelling, and a list of what was changed. The given manifest is not
    modified."""
    result: dict[str, Any] = copy.deepcopy(document)
    changes = [*_moved(result), *_without_nulls(result), *_renamed(result), *_whole(result.get("spec"), ("spec",))]
    return result, changes


def _moved(document: dict[str, Any]) -> Iterator[Change]:
    for old, new in MOVED.items():
        above = map_at(document, old[:-1])
        if above is None or old[-1] not in above:
            continue
        _set(document, new, above.pop(old[-1]))
        yield Change(old, f"is {dotted(new)} now")
    training = map_at(document, BLOCK[:-1])
    if training is not None and training.get(BLOCK[-1], ...) in ({}, None):
        del training[BLOCK[-1]]


def _without_nulls(document: dict[str, Any]) -> Iterator[Change]:
    for old, (new, value) in NULLS.items():
        above = map_at(document, old[:-1])
        if above is None or above.get(old[-1], ...) is not None:
            continue
        del above[old[-1]]
        _set(document, new, value)
        yield Change(old, f"null is {dotted(new)}: {json.dumps(value)} now")


def _renamed(document: dict[str, Any]) -> Iterator[Change]:
    for path, values in VALUES.items():
        above = map_at(document, path[:-1])
        given = above.get(path[-1]) if above is not None else None
        if above is not None and isinstance(given, str) and given in values:
            above[path[-1]] = values[given]
            yield Change(path, f"{given} is {values[given]} now")


def _whole(value: Any, path: FieldPath) -> Iterator[Change]:
    """Round fractions of seconds up to whole seconds, in place, and yield each change."""
    if not isinstance(value, dict):
        return
    for key, child in value.items():
        if key.endswith("Seconds") and isinstance(child, float) and math.isfinite(child):
            value[key] = math.ceil(child)
            yield Change((*path, key), f"{shown(child)} is {value[key]} now, since seconds are whole numbers")
        elif key not in OPEN:
            yield from _whole(child, (*path, key))


def _set(document: dict[str, Any], path: FieldPath, value: Any) -> None:
    """Set a field and create the maps above it that are missing."""
    place: Any = document
    for part in path[:-1]:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    place[path[-1]] = value
