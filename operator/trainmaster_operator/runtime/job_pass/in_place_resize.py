"""New resources for pods that run: what a job's template says now, given to the pods that were made before it did.

Each pod says in an annotation what was last asked for it, so only an edit of the job changes anything, whichever leader
sees it. What a vertical autoscaler or an admission webhook has given a pod stays until the job asks for something else.

The API server changes them in place, and kubelets carry it out without a restart where they can. Where it refuses (a
server that is too old, another class of quality of service, a quota), pods keep what they have until they are made
anew.
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
from trainmaster_operator.runtime.concurrency import run_all
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.observability.events import EventWriter
from trainmaster_operator.runtime.observability.operator_metrics import Metrics


class Vertical:
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
        self._fitted: dict[JobKey, tuple[str, int]] = {}  # uid and generation that all pods have been held against

    def forget(self, key: JobKey) -> None:
        self._fitted.pop(key, None)

    async def fit(self, record: JobRecord, pod: Object) -> None:
        """Once for each version of the job's spec; costs nothing after that. `pod`: as it would be made now."""
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
            words = f"{_pods(len(refusals))} not resized in place, until made anew: {refusals[0]}"
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
        """A pod that has gone meanwhile is neither."""
        self._leader.check()
        self._metrics.writes.labels("resize").inc()
        try:
            await self._cluster.resize(namespace, pod.name, pod.uid, todo)
            # Afterwards: a leader that dies in between leaves a pod that is resized to the same once more.
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
    """For people: "worker limits cpu 2, memory 4096Mi"."""
    told: dict[tuple[str, str], list[str]] = {}
    for one in wanted:
        size = f"{one.amount / 1000:g}" if one.resource == "cpu" else f"{one.amount / 2**20:g}Mi"
        told.setdefault((one.container, one.kind), []).append(f"{one.resource} {size}")
    return "; ".join(f"{container} {kind} {', '.join(sizes)}" for (container, kind), sizes in told.items())
