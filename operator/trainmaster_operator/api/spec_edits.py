"""For every field of the spec, what an edit does while a run is on: it applies at once, it waits, or it is refused.

All ranks of a run must train with the same settings, so a run keeps the spec with which it began. Fields that only say
how the operator looks after the job apply at once. All other edits wait for the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import ValidationError

from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.api.resizable_resources import Raw, pod_with_resources, pod_without_resources


class Edit(str, Enum):
    """What an edit of a field does while a run is on."""

    LIVE = "live"  # The edit applies at once.
    WAITS = "waits"  # The edit waits for the next run, which begins with a resume or a requested restart.
    # The API server refuses the edit until the job is suspended. It always refuses edits of framework and managedBy.
    REFUSED = "refused"


FIELDS: Mapping[str, Edit] = {
    "framework": Edit.REFUSED,
    "workers.replicas": Edit.LIVE,
    "workers.min": Edit.LIVE,
    "workers.max": Edit.LIVE,
    "workers.spares": Edit.LIVE,
    "workers.ranksPerPod": Edit.REFUSED,
    "workers.pinning": Edit.WAITS,
    "workers.sharedMemory": Edit.WAITS,
    "workers.restartCommand": Edit.WAITS,
    "workers.template": Edit.WAITS,  # CPU and memory are excluded: see `resizable_resources`.
    "training.model": Edit.WAITS,
    "training.data": Edit.WAITS,
    "training.steps": Edit.WAITS,
    "training.batch": Edit.REFUSED,
    "training.optimizer": Edit.WAITS,
    "training.parallelism": Edit.REFUSED,
    "training.device": Edit.WAITS,
    "training.precision": Edit.WAITS,
    "training.matmulPrecision": Edit.WAITS,
    "training.recompute": Edit.WAITS,
    "training.compile": Edit.WAITS,
    "training.communication": Edit.WAITS,
    "training.divergence": Edit.WAITS,
    "training.evaluation": Edit.WAITS,
    "training.loggers": Edit.WAITS,
    "training.profile": Edit.WAITS,
    "training.seed": Edit.WAITS,
    "training.deterministic": Edit.WAITS,
    "checkpoint.every": Edit.WAITS,
    "checkpoint.keep": Edit.WAITS,
    "checkpoint.keepBest": Edit.WAITS,
    "checkpoint.resume": Edit.WAITS,
    "checkpoint.directory": Edit.WAITS,
    "checkpoint.volume": Edit.WAITS,
    "checkpoint.timeoutSeconds": Edit.WAITS,
    "checkpoint.ram": Edit.WAITS,
    "recovery.rules": Edit.LIVE,
    "recovery.budget": Edit.LIVE,
    "recovery.hang": Edit.LIVE,
    "recovery.straggler": Edit.LIVE,
    "recovery.elastic": Edit.LIVE,
    "recovery.nodes": Edit.LIVE,
    "recovery.zygote": Edit.WAITS,
    "recovery.agentLostSeconds": Edit.LIVE,
    "scheduling": Edit.LIVE,
    "suspend": Edit.LIVE,
    "restart": Edit.LIVE,
    "activeDeadlineSeconds": Edit.LIVE,
    "pendingDeadlineSeconds": Edit.LIVE,
    "cleanPodPolicy": Edit.LIVE,
    "ttlSecondsAfterFinished": Edit.LIVE,
    "managedBy": Edit.REFUSED,
}
"""The kind of edit by the path of a field. An entry also holds for all fields below its path. `edit_of` raises KeyError
for a field without an entry."""

_LIVE = tuple(tuple(path.split(".")) for path, edit in FIELDS.items() if edit is Edit.LIVE)
_SIZES = ("replicas", "min", "max", "spares")


def edit_of(path: str) -> Edit:
    """Return what an edit of the field at this path of the spec does. Raise KeyError if the table has no entry for
    it."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = FIELDS.get(".".join(parts[:length]))
        if found is not None:
            return found
    raise KeyError(path)


def frozen(spec: Raw) -> Raw:
    """Return a spec without the fields that apply at once: what stays the same during one run. The result shares
    unchanged parts with `spec`."""
    kept = dict(spec)
    for path in _LIVE:
        _put(kept, path, None)
    workers = kept.get("workers") or {}
    if workers.get("template"):
        kept["workers"] = {**workers, "template": _without_resources_of_pod(workers["template"])}
    return {name: value for name, value in kept.items() if value != {}}


def effective_spec(kept: Raw, live: Raw, size: int) -> tuple[JobSpec, tuple[str, ...]]:
    """Return the spec that a run uses now, and the paths of the edited fields that wait for the next run.

    `kept`: the spec with which the run began. `live`: the spec of the job. `size`: number of pods of the run. If the
    sizes of `live` do not fit `kept` (both were edited while the job was suspended for a moment), the sizes wait too.
    Raise ValidationError if that spec is invalid as well.
    """
    now = JobSpec.model_validate(live)
    waiting = differences(JobSpec.model_validate(kept), now)
    if not waiting:
        return now, ()
    merged = merge_live(kept, live)
    try:
        return JobSpec.model_validate(merged), waiting
    except ValidationError:
        workers = merged["workers"] = {**(merged.get("workers") or {}), "replicas": size}
        for bound, nearest in (("min", min), ("max", max)):
            if workers.get(bound) is not None:
                workers[bound] = nearest(workers[bound], size)
        return JobSpec.model_validate(merged), ("workers.replicas", *waiting)


def differences(kept: JobSpec, live: JobSpec) -> tuple[str, ...]:
    """Return the paths of the fields that differ between the two specs, without those that apply at once, in the order
    of the spec."""
    a, b = (frozen(spec.model_dump(mode="json", by_alias=True)) for spec in (kept, live))
    return tuple(_differing("", a, b))


def merge_live(kept: Raw, live: Raw) -> Raw:
    """Return `kept` with the fields of `live` that apply at once. The result has new dicts where it differs from
    `kept`."""
    merged = dict(kept)
    for path in _LIVE:
        _put(merged, path, _at(live, path))
    pods = [(spec.get("workers") or {}).get("template") for spec in (kept, live)]
    if pods[0]:
        template = {**pods[0], "spec": pod_with_resources(pods[0].get("spec") or {}, (pods[1] or {}).get("spec") or {})}
        merged["workers"] = {**merged["workers"], "template": template}
    return merged


def _without_resources_of_pod(template: Raw) -> Raw:
    spec = template.get("spec")
    if not spec:
        return template
    return {**template, "spec": pod_without_resources(spec)}


def _at(spec: Raw, path: tuple[str, ...]) -> Any:
    value: Any = spec
    for name in path:
        value = (value or {}).get(name)
    return value


def _put(spec: Raw, path: tuple[str, ...], value: Any) -> None:
    """Set a field of `spec`, or remove it if `value` is None. `spec` is changed in place; dicts below it are replaced
    by copies."""
    name, *rest = path
    if rest:
        below = dict(spec.get(name) or {})
        _put(below, tuple(rest), value)
        if below or name in spec:
            spec[name] = below
    elif value is None:
        spec.pop(name, None)
    else:
        spec[name] = value


def _differing(path: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(name for name in b if name not in a)]:
            yield from _differing(f"{path}.{name}" if path else name, a.get(name), b.get(name))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, both in enumerate(zip(a, b, strict=True)):
            yield from _differing(f"{path}[{index}]", *both)
    elif a != b:
        yield path


__all__ = [
    "FIELDS",
    "Edit",
    "differences",
    "edit_of",
    "effective_spec",
    "frozen",
]
