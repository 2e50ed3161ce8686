"""The revision of each run: it is created when a run begins and read at most once, never during a recovery.

ControllerRevisions are not watched. If the job and this operator would create exactly the revision that the status
names, it is not read at all; otherwise it is read once and kept in memory as long as the job is known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

from trainmaster_operator.api.job_spec import DistributedTrainingJob, JobSpec
from trainmaster_operator.cluster.port import REVISION, AlreadyExists, ApiError, Cluster, Conflict, NotFound, Object
from trainmaster_operator.manifests.controller_revision import (
    Render,
    Revision,
    Run,
    begun,
    build_revision,
    effective,
    read_revision,
    revision_of,
    same_run,
)
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.job_pass.name_conflicts import check_owner
from trainmaster_operator.runtime.job_pass.refused_pod_retries import Refused
from trainmaster_operator.runtime.lasting_api_failures import attempting
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.observability.operator_metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """The run that a job follows. `following`: the name of the revision of a run that would begin now. `lost`: the
    revision of this run does not exist any more."""

    run: Run
    following: str
    lost: bool = False

    def obeyed_by(self, record: JobRecord) -> JobRecord:
        """Return the record with the spec that its run uses."""
        assert record.job is not None
        if record.job.spec is self.run.spec:
            return record
        return replace(record, job=record.job.model_copy(update={"spec": self.run.spec}))


@dataclass(frozen=True)
class _Known:
    uid: str
    spec: JobSpec  # The spec of the job for which the rest was found.
    name: str  # The name of the run's revision at that time.
    following: Revision
    revision: Revision | None  # The revision of the run.
    confirmed: bool  # True if the API server was seen to have it since the job differs from it.
    kept: Kept


class Revisions:
    """Finds the revision of each job's run, and stores it when a run begins."""

    def __init__(self, cluster: Cluster, leader: Leadership, render: Render, metrics: Metrics) -> None:
        self._cluster = cluster
        self._leader = leader
        self._render = render
        self._metrics = metrics
        self._known: dict[JobKey, _Known] = {}
        self._taken: dict[JobKey, frozenset[str]] = {}  # Names that other objects have.

    def forget(self, key: JobKey) -> None:
        self._known.pop(key, None)
        self._taken.pop(key, None)

    async def look(self, record: JobRecord) -> Kept:
        """Return what the job's run uses. While neither its spec nor its revision changes, this costs one lookup in
        a dict. Raise ApiError, and ValidationError if the stored revision is invalid."""
        assert record.job is not None
        status = record.status
        if status.phase.finished:
            self._known.pop(record.key, None)
            return Kept(Run(status.revision, record.job.spec, {}), status.revision)
        name = "" if status.phase is JobPhase.SUSPENDED else status.revision
        known = self._known.get(record.key)
        if known is not None and known.uid != record.uid:
            self.forget(record.key)
            known = None
        if known is not None and known.spec is record.job.spec and known.name == name:
            return known.kept
        known = self._known[record.key] = await self._looked_at(record, record.job, name, known)
        return known.kept

    async def keep(self, record: JobRecord, status: JobState) -> None:
        """Store the revision of the run that `status`, which is written next, begins, and delete revisions that the
        status no longer names. Raise ApiError and TooLarge."""
        assert record.job is not None
        known = self._known[record.key]
        body = build_revision(record.job, known.following)
        self._leader.check()
        self._metrics.writes.labels("create").inc()
        try:
            with attempting(f"{REVISION} {known.following.name} can't be created"):
                await self._cluster.create(REVISION, body)
        except AlreadyExists:
            found = await self._found(record, known.following.name)
            if found is None or not same_run(found, known.following):
                self._known.pop(record.key)
                taken = self._taken.get(record.key, frozenset())
                self._taken[record.key] = taken | {known.following.name}
                raise Conflict(f"{REVISION} {known.following.name} is something else") from None
        self._known[record.key] = replace(known, revision=known.following, confirmed=False)
        await self._delete(record.key, set(record.status.revisions) - set(status.revisions))

    async def _looked_at(
        self, record: JobRecord, job: DistributedTrainingJob, name: str, known: _Known | None
    ) -> _Known:
        spec: Object = record.raw["spec"]
        following = known.following if known is not None and known.spec is job.spec else self._following(record, job)
        had = known if known is not None and known.revision is not None and known.revision.name == name else None
        revision, confirmed = (had.revision, had.confirmed) if had is not None else (None, False)
        if name == "" and record.status.round and record.status.phase is not JobPhase.SUSPENDED:
            # An operator without revisions began this run, so it is unknown from what its pods were created.
            revision, run = None, begun(job, following)
        elif name in ("", following.name):
            revision, run = following, begun(job, following)
        else:
            if not confirmed:
                revision = await self._found(record, name) or await self._made_again(record, job, revision)
                confirmed = revision is not None
            size = record.status.workers.replicas
            run = effective(revision, job, spec, self._render, size) if revision is not None else begun(job, following)
        kept = Kept(run, following.name, lost=revision is None)
        return _Known(record.uid, job.spec, name, following, revision, confirmed, kept)

    def _following(self, record: JobRecord, job: DistributedTrainingJob) -> Revision:
        taken = self._taken.get(record.key, ())
        every = (revision_of(job, record.raw["spec"], self._render, collisions) for collisions in count())
        return next(revision for revision in every if revision.name not in taken)

    async def _found(self, record: JobRecord, name: str) -> Revision | None:
        """Return the stored revision; None if it does not exist or belongs to somebody else."""
        try:
            with attempting(f"{REVISION} {name} can't be read"):
                found = await self._cluster.get(REVISION, record.key.namespace, name)
            check_owner(REVISION, found, record)
            return read_revision(found)
        except (NotFound, Refused, KeyError, TypeError) as error:
            log.warning("%s: %s %s can't be used: %s", record.key, REVISION, name, error)
            return None

    async def _made_again(
        self, record: JobRecord, job: DistributedTrainingJob, revision: Revision | None
    ) -> Revision | None:
        """Create a deleted revision again if this operator knows its content. Return None otherwise."""
        if revision is None:
            return None
        self._leader.check()
        self._metrics.writes.labels("create").inc()
        try:
            with attempting(f"{REVISION} {revision.name} can't be created"):
                await self._cluster.create(REVISION, build_revision(job, revision))
        except AlreadyExists:
            return None  # It belongs to somebody else, as the read before has shown.
        return revision

    async def _delete(self, key: JobKey, names: Iterable[str]) -> None:
        for name in sorted(names):
            self._leader.check()
            self._metrics.writes.labels("delete").inc()
            try:
                await self._cluster.delete(REVISION, key.namespace, name)
            except NotFound:
                continue
            except ApiError as error:
                log.warning("%s: %s %s was not deleted: %s", key, REVISION, name, error)
