"""The output folder of a run: which run holds it, what it contains, and the resource from which a later run
continues."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainmaster.contract.wire import profile_request
from trainmaster.contract.wire.atomic_replace import replace
from trainmaster_operator.api.api_group import JOB_KIND
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cluster import objects
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.status_mapping import unknown_fields, write_status

STATUS = "status.yaml"
METRICS = "metrics.jsonl"
MEMORY = "memory.json"
REPORT = "report.html"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
FINAL = "final.json"
DIGESTS = "digests"
OURS = (STATUS, METRICS, MEMORY, REPORT, LOGS, CHECKPOINTS, FINAL, DIGESTS, profile_request.FILE)

# A run that continues with one of these changed would be another run with the checkpoints of the first one.
_IDENTITY = (
    ("framework",),
    ("training", "model"),
    ("training", "data"),
    ("training", "batch", "global"),
    ("training", "seed"),
)


class OutputFolder:
    """The directory of a run. `claim` returns it and holds it for this process until it ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, path: Path) -> OutputFolder:
        """Create and lock the directory. Raise Refusal if another run holds it, or if it cannot be written."""
        lock = -1
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (path / LOGS).mkdir(exist_ok=True)
            for folder in (path, path / LOGS):
                # It may belong to another user, or be on a read-only file system.
                with tempfile.TemporaryFile(dir=folder):
                    pass
        except BlockingIOError:
            os.close(lock)
            raise Refusal(f"{path}: another run is using this folder; choose another --out") from None
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            raise Refusal(f"{path}: cannot be used as the output folder: {why(error)}; choose another --out") from None
        return cls(path, lock)

    def release(self) -> None:
        os.close(self._lock)

    @property
    def logs(self) -> Path:
        return self.path / LOGS

    def write_status(self, resource: dict[str, Any]) -> None:
        """Replace status.yaml atomically: a reader sees the old or the new resource. Raise OSError, and then keep
        the old one."""
        replace(self.path / STATUS, dumped(resource).encode())

    def clear(self) -> None:
        """Delete what a run left, and nothing else. Raise Refusal if something cannot be deleted."""
        try:
            for name in OURS:
                target = self.path / name
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                else:
                    target.unlink(missing_ok=True)
            self.logs.mkdir(exist_ok=True)
        except OSError as error:
            place = error.filename or self.path
            raise Refusal(f"{place}: cannot be deleted: {why(error)}; choose another --out") from None


def read_run(out: Path) -> dict[str, Any]:
    """Return the resource of the run in this directory. Raise Refusal if there is none."""
    try:
        return _read(out)
    except FileNotFoundError:
        inside = sorted(file.parent for file in out.glob(f"*/{STATUS}"))
        hint = f", such as {inside[0]}" if inside else f", with its {STATUS}"
        raise Refusal(f"{out}: holds no run; the output folder of a run is expected{hint}") from None


def is_held(path: Path) -> bool:
    """Return whether a run uses the directory now."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def read_status(path: Path) -> dict[str, Any] | None:
    """Return the resource of the run in `path`; None if there was none. Raise Refusal if the path cannot become an
    output folder."""
    try:
        return _read(path)
    except FileNotFoundError:
        if path.is_dir() and any(path.iterdir()):
            raise Refusal(f"{path}: holds other files and no {STATUS}; an empty or a new folder is expected") from None
        return None


def _read(path: Path) -> dict[str, Any]:
    """Return the resource. Raise FileNotFoundError if there is no status, and Refusal if it cannot be read."""
    file = path / STATUS
    try:
        resource = yaml.load(file.read_text(), Loader=_loader())
    except FileNotFoundError:
        raise
    except NotADirectoryError:
        raise Refusal(f"{path}: is not a folder") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refusal(f"{file}: cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(resource, dict) or resource.get("kind") != JOB_KIND or "name" not in resource.get("metadata", {}):
        raise Refusal(f"{file}: is not the status of a {JOB_KIND}")
    return resource


def check_same_job(path: Path, before: dict[str, Any], now: DistributedTrainingJob) -> None:
    """Raise Refusal if the directory holds another job, or this one with other data, model, batch or seed."""
    name = before["metadata"]["name"]
    if name != now.metadata.name:
        raise Refusal(f"{path}: is the output folder of job {name}, not of {now.metadata.name}; choose another --out")
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
            "lastFailure": None if status.phase is JobPhase.FAILED else status.lastFailure,
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


def dumped(value: Any) -> str:
    return str(yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=110))


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


def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _dumper() -> Any:
    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)
