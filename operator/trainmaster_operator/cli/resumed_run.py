"""Whether a run may continue in the output folder of an earlier one, and the status with which it continues."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cluster import objects
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.status_mapping import unknown_fields, write_status

# A run that continues with one of these changed would be another run with the checkpoints of the first one.
_IDENTITY = (
    ("framework",),
    ("training", "model"),
    ("training", "data"),
    ("training", "batch", "global"),
    ("training", "seed"),
)


def check_name(path: Path, before: dict[str, Any], now: DistributedTrainingJob) -> None:
    """Raise Refusal if the directory holds another job, whose checkpoints --fresh must not delete either."""
    name = before["metadata"]["name"]
    if name != now.metadata.name:
        raise Refusal(f"{path}: is the output folder of job {name}, not of {now.metadata.name}; choose another --out")


def check_same_job(path: Path, before: dict[str, Any], now: DistributedTrainingJob) -> None:
    """Raise Refusal if the directory holds this job with other data, model, batch or seed."""
    name = before["metadata"]["name"]
    try:
        state_of(before)
        old = DistributedTrainingJob.model_validate({**before, "status": {}})
    except (ValidationError, Refusal):
        raise Refusal(
            f"{path}: holds a run of job {name} that another version of trainmaster wrote; choose another --out, or "
            f"delete the old run with --fresh"
        ) from None
    changed = list(_changes(old, now))
    if changed:
        raise Refusal(
            f"{path}: holds a run of job {name} with a different {' and a different '.join(changed)}; "
            "choose another --out, or delete the old run with --fresh"
        )


def check_steps(path: Path, before: dict[str, Any], now: DistributedTrainingJob) -> None:
    """Raise Refusal if the run would continue from a checkpoint after the job's last step."""
    checkpoint = state_of(before).checkpoint
    saved = checkpoint.step if checkpoint is not None else 0
    if now.spec.training is not None and now.spec.checkpoint.resume == "Auto" and saved > now.spec.training.steps:
        raise Refusal(
            f"{path}: its newest checkpoint has step {saved}, but spec.training.steps is now "
            f"{now.spec.training.steps}; choose more steps, choose another --out, or delete the old run with --fresh"
        )


def first_resource(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job that has never run, as the store will hold it."""
    created = objects.timestamp(time.time())
    meta = {**job["metadata"], "uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": created}
    return {**job, "metadata": meta, "status": write_status(JobState())}


def resumed_resource(before: dict[str, Any], job: dict[str, Any], last_round: int) -> dict[str, Any]:
    """Return the job with the uid and the history of the previous run, suspended as that run left it, with nothing
    running.

    `last_round`: the highest round in the storage. Budgets begin again at 0, because a person asked to continue.
    """
    status = state_of(before)
    used = max(status.round, last_round)
    status = status.model_copy(
        update={
            "phase": JobPhase.SUSPENDED if used else JobPhase.PENDING,
            "leaderEpoch": 0,  # It belongs to a Lease in a store that no longer exists.
            "revision": "",  # It was in that store too.
            "revisions": [],
            "round": used + 1 if used else 0,  # The round forms, and opens once the new pods have joined.
            "roundStore": "",
            "stopAt": None,
            "stopBound": False,
            "completionTime": "",
            "spent": [],
            "recoveries": [r for r in status.recoveries if r.totalSeconds is not None],
            "conditions": [c for c in status.conditions if c.type not in ("Failed", "Complete")],
        }
    )
    old = before["metadata"]
    meta = {
        **job["metadata"],
        "uid": old["uid"],
        "generation": int(old.get("generation", 1)) + (1 if before["spec"] != job["spec"] else 0),
        "creationTimestamp": old["creationTimestamp"],
    }
    return {**job, "metadata": meta, "status": write_status(status, unknown_fields(before.get("status")))}


def highest_round(checkpoints: Path) -> int:
    """Return the highest round of the lineage files; 0 if there are none. They may be newer than status.yaml if the
    run was killed."""
    names = os.listdir(checkpoints / "lineage") if (checkpoints / "lineage").is_dir() else []
    rounds = [int(match[1]) for name in names if (match := re.fullmatch(r"round-(\d+)\.json", name))]
    return max(rounds, default=0)


def _changes(old: DistributedTrainingJob, now: DistributedTrainingJob) -> Iterator[str]:
    a, b = old.spec.model_dump(mode="json"), now.spec.model_dump(mode="json")
    for path in _IDENTITY:
        was, wanted = _at(a, path), _at(b, path)
        for place, old_value, new_value in _leaves(".".join(path), was, wanted):
            yield f"spec.{place} ({_shown(old_value)}, now {_shown(new_value)})"


def _leaves(place: str, was: Any, wanted: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, old, new) for everything that differs, as deep as both values are maps."""
    if isinstance(was, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*was, *wanted]):
            yield from _leaves(f"{place}.{key}", was.get(key), wanted.get(key))
    elif was != wanted:
        yield place, was, wanted


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return "given" if isinstance(value, (dict, list)) else str(value)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value
