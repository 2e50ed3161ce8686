"""What one pass over a job decides from: its pods, the reports of its agents, and what the cluster does about
waiting pods."""

from __future__ import annotations

from dataclasses import replace

from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.cluster.nodes_port import Nodes
from trainmaster_operator.cluster.port import Cluster
from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.planning.facts.node_suspicion import Suspicion
from trainmaster_operator.planning.facts.observation import NewPlaces, Observation, PodRecord
from trainmaster_operator.runtime.cache.cache_records import JobRecord, PodEntry, own_pods
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.job_pass.pod_event_diagnosis import Troubles
from trainmaster_operator.runtime.job_pass.refused_pod_retries import Refusals
from trainmaster_operator.runtime.job_pass.revisions import Kept
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.nodes.node_health import Ledger
from trainmaster_operator.runtime.nodes.node_taints import NodeTaints
from trainmaster_operator.runtime.nodes.scale_up_signs import NewPlacesSeen


class JobObserver:
    """Makes the observations of all jobs. `refusals`: what the API server refused to create, by job."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        leader: Leadership,
        pods: Informer[PodEntry],
        fleet: Fleet,
        refusals: Refusals,
        ledger: Ledger | None,
        node_taints: NodeTaints | None,
        nodes: Nodes | None,
        *,
        in_cluster: bool,
    ) -> None:
        self._clock, self._leader, self._pods, self._fleet = clock, leader, pods, fleet
        self._refusals, self._ledger, self._node_taints = refusals, ledger, node_taints
        self._in_cluster = in_cluster
        self._led_since = clock.monotonic()
        self._troubles = Troubles(cluster, clock) if in_cluster else None
        self._new_places = NewPlacesSeen(cluster, clock, nodes) if in_cluster else None

    def leads_from_now(self) -> None:
        """Record that this operator begins to lead."""
        self._led_since = self._clock.monotonic()

    def forget(self, key: JobKey) -> None:
        """Forget everything about a job that is gone."""
        if self._troubles is not None:
            self._troubles.forget(key)
        if self._new_places is not None:
            self._new_places.forget(key)

    def observe(self, record: JobRecord, kept: Kept) -> Observation:
        """Return all that a pass over this job decides from. `kept`: the revision of its run."""
        now = self._clock.monotonic()
        agents = self._fleet.agents(record.key, unpack_counts(record.status.incarnations))

        def seen(entry: PodEntry) -> PodRecord:
            agent = agents.get(entry.record.slot)
            # How long a pod has run matters only if its agent has not been heard.
            aged = agent is None or agent.pod_uid != entry.record.uid or entry.record.deleting
            if not aged:
                return entry.record
            pod = entry.observed(now)
            if not pod.deleting:
                return pod
            # Since this leader leads, no earlier one has answered any agent.
            unanswered_s = min(now - self._led_since, self._fleet.unanswered_s(record.key, pod.uid))
            return replace(pod, unanswered_s=unanswered_s)

        pods = tuple(seen(entry) for entry in own_pods(self._pods, record))
        return Observation(
            name=record.key.name,
            namespace=record.key.namespace,
            uid=record.uid,
            generation=record.generation,
            deleting=record.deleting,
            epoch=self._leader.epoch,
            absence=self._leader.absence,
            standby_answers=self._leader.standby_answers,
            pods=pods if self._troubles is None else self._troubles.add_reasons(record.key, pods),
            agents=agents,
            checkpoint=self._fleet.checkpoint(record.key),
            failed_save=self._fleet.failed_save(record.key),
            refusal=self._refusals.of(record.key, record.uid),
            report_interval_s=self._fleet.report_interval_s,
            revision=kept.following,
            waiting=kept.run.waiting,
            revision_lost=kept.lost,
            in_cluster=self._in_cluster,
            leading_s=now - self._led_since,
            suspicion=self._ledger.suspicion() if self._ledger is not None else Suspicion(),
            tainted=self._node_taints.tainted if self._node_taints is not None else (),
            new_places=self._new_places.seen(record.key) if self._new_places is not None else NewPlaces(),
        )

    async def ask_around(self, record: JobRecord) -> tuple[bool, float]:
        """Read news about pods that do not start from the API server.

        Return whether there is any, and the seconds until the next look.
        """
        if self._troubles is None or self._new_places is None:
            return False, float("inf")
        if record.status.roundStore or record.status.phase.finished:
            return False, float("inf")
        pods = [entry.record for entry in own_pods(self._pods, record)]
        troubles, wait_s = await self._troubles.look(record.key, pods)
        tainted = self._node_taints is not None and bool(self._node_taints.tainted)
        places, places_wait_s = await self._new_places.look(record.key, pods, even_if_none_is_held=tainted)
        return troubles or places, min(wait_s, places_wait_s)
