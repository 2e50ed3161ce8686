"""How the pods of a job are created and deleted: what a plan asks for is written to the API server."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trainmaster_operator.cluster.port import POD, AlreadyExists, ApiError, Cluster, Conflict, Invalid, NotFound
from trainmaster_operator.manifests.controller_revision import Run
from trainmaster_operator.manifests.job_pod import fill_pod
from trainmaster_operator.manifests.object_names import CURRENT
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.planning.facts.observation import EventType, PodToCreate, PodToDelete
from trainmaster_operator.runtime.cache.cache_records import JobRecord, PodEntry
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.job_pass.job_prerequisites import Surroundings
from trainmaster_operator.runtime.job_pass.name_conflicts import check_owner
from trainmaster_operator.runtime.job_pass.refused_pod_retries import NAME_IN_USE, Refusals, Refused, refused
from trainmaster_operator.runtime.lasting_api_failures import attempting, words_of
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.nodes.node_taints import NodeTaints
from trainmaster_operator.runtime.observability.events import EventWriter
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.parallel_api_calls import run_all

log = logging.getLogger(__name__)


class PodWrites:
    """Creates and deletes pods. `refusals`: remembers what the API server refused to create, by job."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        leader: Leadership,
        pods: Informer[PodEntry],
        pod_defaults: PodDefaults,
        surroundings: Surroundings,
        refusals: Refusals,
        node_taints: NodeTaints | None,
        events: EventWriter,
        metrics: Metrics,
    ) -> None:
        self._cluster, self._clock, self._leader, self._pods = cluster, clock, leader, pods
        self._pod_defaults, self._surroundings, self._refusals = pod_defaults, surroundings, refusals
        self._node_taints, self._events, self._metrics = node_taints, events, metrics

    async def delete(self, record: JobRecord, pod: PodToDelete) -> None:
        """Delete a pod by its uid, after its labels no longer select it for the Service. Raise NotLeading, ApiError."""
        key = JobKey(record.key.namespace, pod.name)
        grace_s = None if pod.grace_s is None else int(pod.grace_s)
        self._leader.check()
        self._metrics.writes.labels("delete").inc()
        try:
            if pod.replaced and grace_s != 0:
                await self._hide(key, pod)
            with attempting(f"pod {pod.name} can't be deleted"):
                await self._cluster.delete(POD, key.namespace, key.name, uid=pod.uid, grace_s=grace_s)
        except NotFound:
            self._pods.removed(key, pod.uid)
            return
        except (Conflict, Invalid):  # An API server answers Invalid if the uid in a patch is not that of the object.
            found = await self._cluster.get(POD, key.namespace, key.name)
            if found["metadata"]["uid"] == pod.uid:
                raise  # The error has another reason.
            self._pods.wrote(found)
            return
        log.info("%s: deleted pod %s: %s", record.key, pod.name, pod.reason)
        if grace_s == 0:
            self._pods.removed(key, pod.uid)
        else:
            now = self._clock.monotonic()
            self._pods.amended(key, pod.uid, lambda entry: entry.being_deleted(now))

    async def _hide(self, key: JobKey, pod: PodToDelete) -> None:
        """Remove the label by which the Service finds a pod that is being deleted, because its replacement has the
        same host name."""
        patch = {"metadata": {"uid": pod.uid, "labels": {CURRENT: None}}}
        with attempting(f"the labels of pod {pod.name} can't be changed"):
            await self._cluster.patch(POD, key.namespace, key.name, patch)

    async def create_all(self, record: JobRecord, pods: Sequence[PodToCreate], run: Run) -> None:
        """Create pods of a run. Raise NotFound if the namespace is gone, and NotLeading.

        A refusal of the API server is remembered for the planner, and no further pod is tried. After a refusal, one pod
        is tried before the others.
        """
        try:
            self._await_predecessor(record)
            await self._surroundings.prepare(record)
            self._tell_of_one_node(record)
            avoid: Sequence[str] = [] if record.status.avoidedInVain else record.status.avoidNodes
            if self._node_taints is not None:
                avoid = await self._node_taints.keep_off(avoid)
            if self._refusals.of(record.key, record.uid) is not None:
                await self._create(record, pods[0], run, avoid)
                pods = pods[1:]
            await run_all((self._create(record, pod, run, avoid) for pod in pods), len(pods))
        except Refused as error:
            self._refusals.note(record.key, record.uid, error)
            log.warning("%s: %s: %s", record.key, error.reason, error)
        except NotFound:
            raise  # The namespace is gone, or the job's own end is on its way.
        except ApiError as error:
            self._refusals.note(record.key, record.uid, refused(error))
            log.warning("%s: %s", record.key, words_of(error))
        else:
            self._refusals.forget(record.key)

    def _await_predecessor(self, record: JobRecord) -> None:
        """Raise Refused while pods of a previous job with this name exist, because they have our pods' host names
        and perhaps their names."""
        old = [entry for entry in self._pods.owned(record.key) if entry.job_uid != record.uid]
        if old:
            which = "a pod" if len(old) == 1 else f"{len(old)} pods"
            raise Refused(NAME_IN_USE, f"waiting for {which} of a previous job with this name to terminate")

    def _tell_of_one_node(self, record: JobRecord) -> None:
        if claim := self._surroundings.claim_of_one_node(record.key):
            words = (
                f"claim {claim} is ReadWriteOnce, so all pods of this job must be on one node: if they do not fit "
                "there, use a ReadWriteMany claim"
            )
            self._events.remark(record, EventType.NORMAL, "OneNode", words)

    async def _create(self, record: JobRecord, pod: PodToCreate, run: Run, avoid: Sequence[str]) -> None:
        body = fill_pod(
            run.pod,
            pod.slot,
            pod.incarnation,
            self._pod_defaults,
            revision=record.status.revision,
            avoid=avoid,
            together=self._surroundings.claim_of_one_node(record.key) != "",
        )
        self._leader.check()
        self._metrics.writes.labels("create").inc()
        name = body["metadata"]["name"]
        try:
            created = await self._cluster.create(POD, body)
        except AlreadyExists:
            # A reply to a request of ours was lost, or somebody else created the pod first.
            try:
                created = await self._cluster.get(POD, record.key.namespace, name)
            except NotFound:
                raise Conflict(f"pod {name} was there and has gone") from None
            check_owner(POD, created, record)
        self._pods.wrote(created)
