"""What the previous leader may have written and the watch has not delivered yet.

Jobs and pods are watched separately, and either watch may be late. A new leader may know a job's newest status and not
its newest pods; then it would take them for lost and replace them. So before it judges incarnations that it has not
written itself, it asks the API server for the pods that it does not see. It may also know pods and not the newest
status; then it would tell their agents that they are stale. So it reads each job once before it tells agents anything.
"""

from __future__ import annotations

from collections.abc import Callable

from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.cluster.port import POD, Cluster, Conflict, NotFound
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.view import WORKER
from trainmaster_operator.runtime.cache.cache_records import JobRecord, PodEntry, own_pods, owning_job
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.lasting_api_failures import attempting
from trainmaster_operator.runtime.parallel_api_calls import run_all


class Inherited:
    """Finds pods and statuses that an earlier leader wrote."""

    def __init__(
        self, cluster: Cluster, pods: Informer[PodEntry], pod_name: Callable[[str, str, int, int], str]
    ) -> None:
        self._cluster, self._pods, self._pod_name = cluster, pods, pod_name
        # The uid and incarnations for which the cache has all existing pods.
        self._known: dict[JobKey, tuple[str, str]] = {}
        self._met: dict[JobKey, str] = {}  # The uids of jobs that were read from the API server.

    def is_new(self, record: JobRecord) -> bool:
        """Return whether this job must be read from the API server. It returns True once per job."""
        if self._met.get(record.key) == record.uid:
            return False
        self._met[record.key] = record.uid
        return True

    async def find(self, record: JobRecord) -> None:
        """Put pods of this job's incarnations into the cache that no watch has delivered. Raise ApiError."""
        status = record.status
        if status.phase.finished or status.phase is JobPhase.SUSPENDED:
            return
        if self._known.get(record.key) == (record.uid, status.incarnations):
            return
        seen = {entry.record.name for entry in own_pods(self._pods, record)}
        counts = enumerate(unpack_counts(status.incarnations))
        names = (self._pod_name(record.key.name, WORKER, slot, incarnation) for slot, incarnation in counts)
        missing = [name for name in names if name not in seen]
        await run_all((self._look_for(record, name) for name in missing), len(missing))
        self.wrote(record.key, record.uid, status.incarnations)

    def wrote(self, key: JobKey, uid: str, incarnations: str) -> None:
        """Record that this leader wrote these incarnations, so only this leader creates their pods."""
        self._known[key] = (uid, incarnations)

    def forget(self, key: JobKey) -> None:
        self._known.pop(key, None)
        self._met.pop(key, None)

    async def _look_for(self, record: JobRecord, name: str) -> None:
        key = JobKey(record.key.namespace, name)
        try:
            with attempting(f"pod {name} can't be read"):
                found = await self._cluster.get(POD, key.namespace, name)
        except NotFound:
            return
        if owning_job(found) != record.key:
            return  # The attempt to create our pod will show whose pod this is.
        if self._pods.wrote(found) is None:
            raise Conflict(f"pod {name} exists, but the watch has not delivered it yet")
