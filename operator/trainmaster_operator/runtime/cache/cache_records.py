"""What the caches keep about jobs and pods: only the needed fields, parsed once per change."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pydantic import ValidationError

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.api.job_spec import CONTROLLER, DistributedTrainingJob, ObjectMeta
from trainmaster_operator.api.validation.problem import in_one_line
from trainmaster_operator.cluster.port import JOB, Object
from trainmaster_operator.manifests.object_names import RESOURCES
from trainmaster_operator.manifests.resources import Amount, read
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import former_spec, former_status
from trainmaster_operator.planning.status_mapping import OtherLayout, read_status, unknown_fields
from trainmaster_operator.runtime.cache import pod_status
from trainmaster_operator.runtime.cache.informer import Informer, JobKey

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobRecord:
    """A job in the cache. `job` is None if the manifest is invalid; then `problem` says why."""

    key: JobKey
    uid: str
    version: str
    generation: int
    deleting: bool
    raw: Object
    job: DistributedTrainingJob | None
    problem: str = ""
    status: JobState = field(default_factory=JobState)
    unknown: Object = field(default_factory=dict)  # Fields of the status that other versions wrote.
    migration: str = ""  # Why the job is left alone: an earlier version wrote its status or its spec.
    spec_is_former: str = ""  # The same for the spec alone.

    @property
    def is_managed_elsewhere(self) -> bool:
        """True if another controller is responsible for the job. This is also known for a manifest that is invalid
        here."""
        controller = (self.raw.get("spec") or {}).get("managedBy")
        return controller not in (None, CONTROLLER)


@dataclass(frozen=True)
class PodEntry:
    """A pod in the cache. `running_since`, `deleting_since`, `unheard_since` and `node_lost_since` are monotonic times
    at which this process first saw that state."""

    record: PodRecord
    running_since: float | None
    job_uid: str  # The uid of the controlling owner.
    token_sha256: str
    job: str = ""  # The name of the controlling owner.
    deleting_since: float | None = None
    unheard_since: float | None = None
    node_lost_since: float | None = None
    asked: tuple[Amount, ...] = ()  # The CPU and memory that the job last asked for this pod.

    def observed(self, now: float) -> PodRecord:
        """Return the record with its ages in seconds at `now` (monotonic)."""
        since = (self.running_since, self.deleting_since, self.unheard_since, self.node_lost_since)
        if since == (None, None, None, None):
            return self.record
        running_s, deleting_s, unheard_s, node_lost_s = (now - at if at is not None else 0.0 for at in since)
        return replace(
            self.record, running_s=running_s, deleting_s=deleting_s, unheard_s=unheard_s, node_lost_s=node_lost_s
        )

    @property
    def thrives(self) -> bool:
        """True if the pod runs or is starting without a known problem."""
        record = self.record
        troubled = record.deleting or record.node_lost or record.disruption or record.lingers
        return record.phase in ("Pending", "Running") and not troubled

    def being_deleted(self, now: float) -> PodEntry:
        """Return the entry as it is after this operator's own delete request, until the watch reports it."""
        since = self.deleting_since if self.deleting_since is not None else now
        return replace(self, record=replace(self.record, deleting=True), deleting_since=since)


def job_record(obj: Object, known: JobRecord | None) -> JobRecord:
    """Return the record of a job object. The spec is parsed only if it differs from the known one, because most
    changes of a job concern its status.

    An error of the parser is a problem of this job only: raised here, it would end the cache of all jobs, and the
    operator with it, as often as it starts."""
    meta = obj["metadata"]
    stored = obj.get("status")
    job: DistributedTrainingJob | None = None
    status = JobState()
    problem = ""
    same_spec = known is not None and known.raw.get("spec") == obj.get("spec")
    spec_is_former = known.spec_is_former if known is not None and same_spec else former_spec(obj.get("spec"))
    migration = former_status(stored) or spec_is_former
    try:
        if not migration:
            status = read_status(stored)
            job = _parsed(obj, known if same_spec else None)
    except OtherLayout as error:
        problem = str(error)
    except ValidationError as error:
        problem = in_one_line(error)
    except Exception as error:
        log.exception("%s: the job can't be read", job_key(obj))
        problem = f"the operator can't read this job: {type(error).__name__}: {error}"
    return JobRecord(
        key=job_key(obj),
        uid=meta["uid"],
        version=meta["resourceVersion"],
        generation=meta.get("generation", 0),
        deleting=bool(meta.get("deletionTimestamp")),
        raw=obj,
        job=job,
        problem=problem,
        status=status,
        unknown=unknown_fields(stored) if job is not None else {},
        migration=migration,
        spec_is_former=spec_is_former,
    )


def _parsed(obj: Object, known: JobRecord | None) -> DistributedTrainingJob:
    """Return the parsed job. `known`: a record with the same spec, which is not parsed again."""
    if known is not None and known.job is not None:
        return known.job.model_copy(update={"metadata": ObjectMeta.model_validate(obj["metadata"])})
    return DistributedTrainingJob.model_validate({name: value for name, value in obj.items() if name != "status"})


def job_key(obj: Object) -> JobKey:
    """Return the namespace and name of an object."""
    return JobKey(obj["metadata"]["namespace"], obj["metadata"]["name"])


def owning_job(obj: Object) -> JobKey | None:
    """Return the job that controls this object, or None."""
    owner = _controller(obj)
    return JobKey(obj["metadata"]["namespace"], owner["name"]) if owner else None


def controller_uid(obj: Object) -> str:
    """Return the uid of the job that controls this object, or "" if none does."""
    uid: str = (_controller(obj) or {}).get("uid", "")
    return uid


def pod_entry(obj: Object, known: PodEntry | None, now: float) -> PodEntry:
    """Return the cache entry of a pod object. `known`: the previous entry. `now`: monotonic."""
    meta, status, labels = obj["metadata"], obj.get("status") or {}, obj["metadata"].get("labels") or {}
    state = pod_status.read(obj)
    deleting = bool(meta.get("deletionTimestamp"))
    return PodEntry(
        running_since=(known and known.running_since) or (now if state.phase == "Running" else None),
        deleting_since=((known and known.deleting_since) or now) if deleting else None,
        unheard_since=((known and known.unheard_since) or now) if state.unheard else None,
        node_lost_since=((known and known.node_lost_since) or now) if state.node_lost else None,
        record=PodRecord(
            name=meta["name"],
            uid=meta["uid"],
            role=labels.get(f"{GROUP}/role", ""),
            slot=_number(labels.get(f"{GROUP}/slot")),
            incarnation=_number(labels.get(f"{GROUP}/incarnation")),
            phase=state.phase,
            deleting=deleting,
            node=obj.get("spec", {}).get("nodeName", ""),
            reason=state.reason,
            message=state.message,
            exit_code=state.exit_code,
            disruption=state.disruption,
            node_lost=state.node_lost,
            rejected=state.rejected,
            lingers=state.lingers,
            placed_at=state.placed_at,
            keeps_away=state.keeps_away,
        ),
        job_uid=controller_uid(obj),
        token_sha256=status.get("tokenSha256", ""),
        job=(_controller(obj) or {}).get("name", ""),
        asked=_asked((meta.get("annotations") or {}).get(RESOURCES) or ""),
    )


def own_pods(pods: Informer[PodEntry], record: JobRecord) -> list[PodEntry]:
    """Return the pods of this job, without those of a previous job with the same name."""
    return [entry for entry in pods.owned(record.key) if entry.job_uid == record.uid]


@lru_cache(maxsize=1024)
def _asked(annotation: str) -> tuple[Amount, ...]:
    """Return the amounts in an annotation. Pods with the same annotation share one object."""
    return read(annotation)


def _controller(obj: Object) -> Object | None:
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == JOB:
            found: Object = owner
            return found
    return None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else -1
