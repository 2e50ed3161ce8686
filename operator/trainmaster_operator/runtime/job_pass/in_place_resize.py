"""New CPU and memory for running pods: the amounts in a job's template are given to pods that were created before the
edit.

An annotation of each pod says what was last asked for it, so only an edit of the job changes anything, whichever leader
sees it. Amounts that a vertical autoscaler or an admission webhook has set stay until the job asks for something else.
The API server changes them in place, and kubelets apply them without a restart if they can. If the API server refuses
(it is too old, the quality-of-service class would change, a quota), pods keep their amounts until they are created
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.cluster.port import (
    POD,
    ApiError,
    Cluster,
    Forbidden,
    Invalid,
    NotFound,
    Object,
)
from trainmaster_operator.manifests.object_names import RESOURCES
from trainmaster_operator.manifests.resources import Amount, amounts, changes, written
from trainmaster_operator.planning.facts.observation import EventType, PodRecord
from trainmaster_operator.runtime.cache.cache_records import JobRecord, PodEntry, own_pods
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.observability.events import EventWriter
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.parallel_api_calls import run_all


class Vertical:
    """Resizes the running pods of jobs in place."""

    def __init__(
        self,
        cluster: Cluster,
        leader: Leadership,
        pods: Informer[PodEntry],
        events: EventWriter,
        metrics: Metrics,
    ) -> None:
        self._cluster = cluster
        self._leader = leader
        self._pods = pods
        self._events = events
        self._metrics = metrics
        # The uid and generation for which all pods were compared with the spec.
        self._fitted: dict[JobKey, tuple[str, int]] = {}

    def forget(self, key: JobKey) -> None:
        self._fitted.pop(key, None)

    async def fit(self, record: JobRecord, pod: Object) -> None:
        """Resize the pods of a job, once for each generation of its spec; further calls cost nothing. `pod`: the pod
        as it would be created now."""
        state = (record.uid, record.generation)
        if self._fitted.get(record.key) == state or record.job is None or record.deleting:
            return
        wanted = amounts((pod.get("spec") or {}).get("containers") or [])
        mine = (entry for entry in own_pods(self._pods, record) if entry.thrives)
        pods = [(entry, todo) for entry in mine if (todo := changes(wanted, entry.asked))]
        done: list[str] = []
        refusals: list[ApiError] = []
        space = record.key.namespace
        await run_all(
            (self._resize(space, entry.record, wanted, todo, done, refusals) for entry, todo in pods), len(pods)
        )
        self._fitted[record.key] = state
        if done:
            words = f"{_pods(len(done))} resized in place, without a restart: {_words(wanted)}"
            self._events.remark(record, EventType.NORMAL, "Resized", words)
        if refusals:
            later = "each gets the new values when it is replaced"
            words = f"{_pods(len(refusals))} not resized in place; {later}: {refusals[0]}"
            self._events.remark(record, EventType.WARNING, "ResizeRefused", words)

    async def _resize(
        self,
        namespace: str,
        pod: PodRecord,
        wanted: Sequence[Amount],
        todo: dict[str, Object],
        done: list[str],
        refusals: list[ApiError],
    ) -> None:
        """Resize one pod and add its name to `done`, or the API server's error to `refusals`. Pods deleted in the
        meantime are added to neither list."""
        self._leader.check()
        self._metrics.writes.labels("resize").inc()
        try:
            await self._cluster.resize(namespace, pod.name, pod.uid, todo)
            # The note is written last: if a leader dies before it, the next one resizes the pod to the same amounts
            # once more.
            note = {"metadata": {"uid": pod.uid, "annotations": {RESOURCES: written(wanted)}}}
            self._pods.wrote(await self._cluster.patch(POD, namespace, pod.name, note))
            done.append(pod.name)
        except (Forbidden, Invalid, NotFound) as error:
            try:
                found = await self._cluster.get(POD, namespace, pod.name)
            except NotFound:
                return
            if found["metadata"]["uid"] == pod.uid:
                refusals.append(error)


def _pods(count: int) -> str:
    return "1 pod was" if count == 1 else f"{count} pods were"


def _words(wanted: Sequence[Amount]) -> str:
    """Return the amounts as text for people: "worker limits cpu 2, memory 4096Mi"."""
    told: dict[tuple[str, str], list[str]] = {}
    for one in wanted:
        size = f"{one.amount / 1000:g}" if one.resource == "cpu" else f"{one.amount / 2**20:g}Mi"
        told.setdefault((one.container, one.kind), []).append(f"{one.resource} {size}")
    return "; ".join(f"{container} {kind} {', '.join(sizes)}" for (container, kind), sizes in told.items())
