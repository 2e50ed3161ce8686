"""What the caches keep of jobs and pods: slim, parsed once per change."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from trainmaster_operator.api.job import DistributedTrainingJob, ObjectMeta
from trainmaster_operator.api.meta import GROUP
from trainmaster_operator.api.status import JobStatus
from trainmaster_operator.cluster.port import JOB, Object
from trainmaster_operator.planning.observation import PodRecord
from trainmaster_operator.runtime.informer import JobKey


@dataclass(frozen=True)
class JobRecord:
    """`job` is None when the manifest can't be understood; `problem` then says why."""

    key: JobKey
    uid: str
    version: str
    generation: int
    deleting: bool
    raw: Object
    job: DistributedTrainingJob | None
    problem: str = ""

    @property
    def status(self) -> JobStatus:
        assert self.job is not None
        return self.job.status


@dataclass(frozen=True)
class PodEntry:
    """`running_since`: monotonic, when this process first saw it run."""

    record: PodRecord
    running_since: float | None
    job_uid: str  # of the controlling owner
    token_sha256: str
    job: str = ""  # its name


def job_record(obj: Object, known: JobRecord | None) -> JobRecord:
    """Parses the spec only if it isn't the known one: most changes of a job are of its status."""
    meta = obj["metadata"]
    job: DistributedTrainingJob | None = None
    problem = ""
    try:
        if known is not None and known.job is not None and known.raw["spec"] == obj["spec"]:
            status = JobStatus.model_validate(obj.get("status") or {})
            job = known.job.model_copy(update={"status": status, "metadata": ObjectMeta.model_validate(meta)})
        else:
            job = DistributedTrainingJob.model_validate(obj)
    except ValidationError as error:
        problem = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors())
    return JobRecord(
        key=job_key(obj),
        uid=meta["uid"],
        version=meta["resourceVersion"],
        generation=meta.get("generation", 0),
        deleting=bool(meta.get("deletionTimestamp")),
        raw=obj,
        job=job,
        problem=problem,
    )


def job_key(obj: Object) -> JobKey:
    return JobKey(obj["metadata"]["namespace"], obj["metadata"]["name"])


def owning_job(obj: Object) -> JobKey | None:
    """The job that controls this object."""
    owner = _controller(obj)
    return JobKey(obj["metadata"]["namespace"], owner["name"]) if owner else None


def pod_entry(obj: Object, known: PodEntry | None, now: float) -> PodEntry:
    meta, status, labels = obj["metadata"], obj.get("status") or {}, obj["metadata"].get("labels") or {}
    reason, message, exit_code = _what_is_wrong(status)
    runs = status.get("phase") == "Running"
    return PodEntry(
        running_since=(known and known.running_since) or (now if runs else None),
        record=PodRecord(
            name=meta["name"],
            uid=meta["uid"],
            role=labels.get(f"{GROUP}/role", ""),
            slot=_number(labels.get(f"{GROUP}/slot")),
            incarnation=_number(labels.get(f"{GROUP}/incarnation")),
            phase=status.get("phase", "Pending"),
            deleting=bool(meta.get("deletionTimestamp")),
            node=obj.get("spec", {}).get("nodeName", ""),
            reason=reason,
            message=message,
            exit_code=exit_code,
        ),
        job_uid=(_controller(obj) or {}).get("uid", ""),
        token_sha256=status.get("tokenSha256", ""),
        job=(_controller(obj) or {}).get("name", ""),
    )


def _controller(obj: Object) -> Object | None:
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == JOB:
            found: Object = owner
            return found
    return None


def _what_is_wrong(status: Object) -> tuple[str, str, int | None]:
    """(reason, message, exit code) of the pod, or of its first container that waits for something or has ended."""
    reason, message = status.get("reason", ""), status.get("message", "")
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return reason or waiting["reason"], message or waiting.get("message", ""), None
        if terminated and terminated.get("exitCode") is not None:
            code = int(terminated["exitCode"])
            if code or container is (status.get("containerStatuses") or [None])[0]:
                return reason or terminated.get("reason", ""), message or terminated.get("message", ""), code
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return reason or "Evicted", message or condition.get("message", ""), None
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return reason or "Unschedulable", message or condition.get("message", ""), None
    return reason, message, None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else -1
