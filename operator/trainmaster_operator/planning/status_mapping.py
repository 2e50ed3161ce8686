"""Conversion between the API's status and the planner's flat record.

`read_status(write_status(state)) == state` for every state. `unknown_fields` keeps everything in the API's status that
these models do not know, because a newer operator may have written it. A field without a value is left out.

Each pass writes a status and each change of a job is read, so both directions use plain dicts and one call of pydantic;
the API's models are not instantiated. Recoveries are most of a status and rarely change, so their conversions are
cached.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, get_args

from pydantic import BaseModel

from trainmaster_operator.api.status import JobStatus
from trainmaster_operator.planning.eta_column import GOES_ON, duration
from trainmaster_operator.planning.facts import foreign_conditions
from trainmaster_operator.planning.facts.job_state import JobState, Recovery
from trainmaster_operator.planning.reason_column import reason_of_phase

Object = dict[str, Any]

_TOP = ("observedGeneration", "phase", "revision", "startTime", "completionTime", "conditions", "lastFailure")
"""Fields with the same name and meaning in both."""

_GROUPS = ("workers", "progress", "checkpoint", "restarts", "goodput", "round", "internal")

_MOVED: dict[str, tuple[str, str]] = {
    "failedSave": ("checkpoint", "failed"),
    "firstStepAt": ("goodput", "since"),
    "usefulSeconds": ("goodput", "usefulSeconds"),
    "lost": ("goodput", "lostSeconds"),
    "goodput": ("goodput", "ratio"),
    "round": ("round", "number"),
    "roundMinor": ("round", "minor"),
    "roundMap": ("round", "members"),
    "roundStore": ("round", "store"),
    "roundOpenedAt": ("round", "openedAt"),
    "checkpoint": ("checkpoint", "durable"),
    "leaderEpoch": ("internal", "leaderEpoch"),
    "incarnations": ("internal", "incarnations"),
    "revisions": ("internal", "revisions"),
    "restartObeyed": ("internal", "restartObeyed"),
    "avoidNodes": ("internal", "avoidNodes"),
    "avoidedInVain": ("internal", "avoidedInVain"),
    "lastStore": ("internal", "lastStores"),
    "spent": ("internal", "charges"),
    "released": ("internal", "gangBackoff"),
    "gates": ("internal", "gates"),
    "totals": ("internal", "totals"),
    "pauses": ("internal", "learnedPauses"),
    "pausesRound": ("internal", "learnedPausesRound"),
    "suspicion": ("internal", "hangSuspicion"),
    "straggler": ("internal", "straggler"),
    "accountedAt": ("internal", "accountedAt"),
    "microDivisor": ("internal", "microDivisor"),
    "skipped": ("internal", "skippedData"),
}
"""Fields of the state, with the group and the field of the API."""

_INNER = {
    "stopAt": ("stop", "step"),
    "stopBound": ("stop", "bound"),
    "roundPods": ("round", "pods"),
    "roundPeers": ("round", "peers"),
    "roundLastSave": ("round", "lastSave"),
    "roundSavedFrom": ("round", "savedFrom"),
    "roundResume": ("round", "resume"),
}
"""Fields of the state, with a group within `internal` and its field."""

_WORKERS = {
    "desired": ("workers", "desired"),
    "replicas": ("workers", "current"),
    "ready": ("workers", "ready"),
    "spares": ("workers", "spares"),
    "selector": ("workers", "selector"),
    "legalSizes": ("workers", "legalSizes"),
    "resizedAt": ("internal", "resizedAt"),
    "shrunkAt": ("internal", "shrunkAt"),
    "nextIncarnation": ("internal", "nextIncarnation"),
    "replacedAt": ("internal", "podReplacedAt"),
    "replacements": ("internal", "podReplacements"),
}
"""Fields of the state's `workers`, with the group and the field of the API."""

_ORDER = (
    *("observedGeneration", "phase", "reason", "revision", "startTime", "completionTime", "conditions"),
    *("workers", "progress", "checkpoint", "restarts", "lastFailure", "recoveries", "goodput", "round", "internal"),
)


_PHASES = {"first_step": "firstStep"}
"""Phases of a recovery's clock with another name in the API. A status of an earlier version has the name of the
clock."""
_PHASES_READ = {new: old for old, new in _PHASES.items()}

_NOTHING: Object = {}
_REMEMBERED = {"recoveries"}
_REMEMBERED_RECOVERIES = 4096


class OtherLayout(ValueError):
    """The status does not have the layout of this version."""


def read_status(status: Object | None) -> JobState:
    """Return the state that a job's status describes. Raise OtherLayout for another layout, and ValidationError if a
    field has another type."""
    if not status:
        return JobState()
    try:
        return JobState.model_validate(_flat(status))
    except (AttributeError, TypeError) as error:
        raise OtherLayout(f"status: groups of fields are expected, as this version writes them ({error})") from None


def write_status(state: JobState, kept: Object | None = None) -> Object:
    """Return the status that describes a state, as JSON values. `kept`: fields of other versions, from
    `unknown_fields`."""
    flat = state.model_dump(mode="json", exclude_defaults=True, exclude=_REMEMBERED)
    found: dict[str, Any] = {group: {} for group in _GROUPS}
    internal = found["internal"]
    for name, value in flat.items():
        if name in _MOVED:
            group, new = _MOVED[name]
            found[group][new] = value
        elif name in _INNER:
            group, new = _INNER[name]
            internal.setdefault(group, {})[new] = value
        elif name in _TOP:
            found[name] = value
    if len(state.conditions) > foreign_conditions.MOST:
        found["conditions"] = foreign_conditions.fitting(found["conditions"])
    if phases := internal.get("totals", _NOTHING).get("phases"):
        internal["totals"]["phases"] = {_PHASES.get(name, name): seconds for name, seconds in phases.items()}
    for name, value in flat.get("workers", _NOTHING).items():
        group, new = _WORKERS[name]
        found[group][new] = value
    if state.checkpoint is not None:
        found["checkpoint"]["durable"]["tier"] = state.checkpoint.tier
    if "progress" in flat:
        _write_progress(state, flat["progress"], found)
    if "restarts" in flat or state.incarnations:
        found["restarts"] = {"total": state.restarts.total, **flat.get("restarts", _NOTHING)}
    if state.incarnations:
        workers, known = found["workers"], state.workers
        workers["current"], workers["ready"] = known.replicas, known.ready
        workers["summary"] = f"{known.ready}/{known.desired or known.replicas}"
    found["phase"] = state.phase.value
    if reason := reason_of_phase(state):
        found["reason"] = reason
    if state.recoveries:
        found["recoveries"] = [_recovery_written(recovery) for recovery in state.recoveries]
    result = {name: found[name] for name in _ORDER if found.get(name)}
    return merged(kept, result) if kept else result


def unknown_fields(status: Object | None) -> Object:
    """Return the parts of a status that these models do not define, by path; {} if there are none. Lists are not
    searched."""
    return _unknown(status, _known_fields(JobStatus)) if status else {}


def merged(kept: Object, written: Object) -> Object:
    """Return both, merged path by path; where both have a value, `written` wins."""
    result = dict(written)
    for name, value in kept.items():
        if name not in result:
            result[name] = value
        elif isinstance(value, dict) and isinstance(result[name], dict):
            result[name] = merged(value, result[name])
    return result


def _write_progress(state: JobState, progress: Object, found: Object) -> None:
    """Write the progress, and its fields about checkpoints, into `found`."""
    if step := progress.pop("memoryStep", 0):
        found["checkpoint"]["memory"] = {"step": step, "round": state.round, "tier": "ram"}
    if step := progress.pop("lastSave", 0):
        found["checkpoint"]["scriptStep"] = step
    if "etaSeconds" in progress and state.phase.value in GOES_ON:
        progress["eta"] = duration(progress["etaSeconds"])
    found["progress"] = progress


def _flat(status: Object) -> Object:
    """Return the fields of the state. Its models ignore what only the API has."""
    flat = {name: status[name] for name in _TOP if name in status}
    groups = {name: status.get(name) or _NOTHING for name in _GROUPS}
    internal, checkpoint = groups["internal"], groups["checkpoint"]
    for old, (group, new) in _MOVED.items():
        value = groups[group].get(new)
        if value is not None:
            flat[old] = value
    for old, (group, new) in _INNER.items():
        if group in internal and new in internal[group]:
            flat[old] = internal[group][new]
    if phases := flat.get("totals", _NOTHING).get("phases"):
        phases = {_PHASES_READ.get(name, name): seconds for name, seconds in phases.items()}
        flat["totals"] = {**flat["totals"], "phases": phases}
    flat["workers"] = {old: groups[group][new] for old, (group, new) in _WORKERS.items() if new in groups[group]}
    flat["restarts"] = groups["restarts"]
    flat["progress"] = progress = dict(groups["progress"])
    if "memory" in checkpoint:
        progress["memoryStep"] = checkpoint["memory"].get("step", 0)
    if "scriptStep" in checkpoint:
        progress["lastSave"] = checkpoint["scriptStep"]
    if "recoveries" in status:
        flat["recoveries"] = [_recovery_read(recovery) for recovery in status["recoveries"]]
    return flat


_written: dict[int, tuple[Recovery, Object]] = {}
"""Converted recoveries by identity, because states share the recoveries that a pass did not change."""


def _recovery_written(recovery: Recovery) -> Object:
    """Return a recovery as JSON values. Seconds with four decimals become milliseconds with one."""
    known = _written.get(id(recovery))
    if known is not None and known[0] is recovery:
        return known[1]
    result = recovery.model_dump(mode="json", exclude_defaults=True)
    seconds, clock = result.pop("totalSeconds", None), result.pop("clock", None)
    if seconds is not None:
        result["totalMilliseconds"] = round(seconds * 1000, 1)
    if clock:
        result["phaseMilliseconds"] = {_PHASES.get(name, name): round(s * 1000, 1) for name, s in clock.items()}
    if len(_written) >= _REMEMBERED_RECOVERIES:
        _written.clear()
    _written[id(recovery)] = (recovery, result)
    return result


def _recovery_read(recovery: Object) -> Recovery:
    phases = tuple(recovery.get("phaseMilliseconds", _NOTHING).items())
    return _recovery_of(tuple({**recovery, "phaseMilliseconds": phases}.items()))


@lru_cache(_REMEMBERED_RECOVERIES)
def _recovery_of(fields: tuple[tuple[str, Any], ...]) -> Recovery:
    recovery = dict(fields)
    total, phases = recovery.pop("totalMilliseconds", None), recovery.pop("phaseMilliseconds")
    if total is not None:
        recovery["totalSeconds"] = round(total / 1000, 4)
    clock = {_PHASES_READ.get(name, name): round(ms / 1000, 4) for name, ms in phases}
    return Recovery.model_validate({**recovery, "clock": clock})


_Known = dict[str, "_Known | None"]
"""The names of fields, with the names of the fields below them where there are any."""


@cache
def _known_fields(model: type[BaseModel]) -> _Known:
    return {name: _below(field.annotation) for name, field in model.model_fields.items()}


def _below(annotation: Any) -> _Known | None:
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return _known_fields(option)
    return None


def _unknown(status: Object, known: _Known) -> Object:
    found: Object = {}
    for name, value in status.items():
        if name not in known:
            found[name] = value
        elif (below := known[name]) is not None and isinstance(value, dict) and (inner := _unknown(value, below)):
            found[name] = inner
    return found
