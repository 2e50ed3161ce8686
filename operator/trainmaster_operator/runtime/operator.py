"""The operator: caches, queue, workers, fleet and lease, connected. It is the same on a cluster, in a local run and
in the simulation."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cluster.nodes_port import Nodes
from trainmaster_operator.cluster.port import (
    JOB,
    POD,
    SERVICE,
    Cluster,
)
from trainmaster_operator.control.agent_pacing import CROWD
from trainmaster_operator.control.authentication import Admission, Claim, Credential
from trainmaster_operator.control.fleet import Fleet, Key, Refused
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.planning.lifecycle import checkpoint_conditions
from trainmaster_operator.runtime.authenticators import Authenticator, Known, TokenHashes
from trainmaster_operator.runtime.cache.cache_records import (
    JobRecord,
    PodEntry,
    controller_uid,
    job_key,
    job_record,
    owning_job,
    pod_entry,
)
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.job_pass.status_write_budget import ProgressBudget
from trainmaster_operator.runtime.lasting_api_failures import (
    ApiFailures,
)
from trainmaster_operator.runtime.leader.lease import Elector, Leadership
from trainmaster_operator.runtime.nodes.node_health import Ledger
from trainmaster_operator.runtime.nodes.node_taints import NodeTaints
from trainmaster_operator.runtime.observability.events import EventWriter
from trainmaster_operator.runtime.observability.job_metrics_page import JobMetrics
from trainmaster_operator.runtime.observability.operator_gauges import LoopLag, observe
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.pass_retries import FIRST_RETRY_S, LONGEST_RETRY_S, PassRetries
from trainmaster_operator.runtime.reconcile import Policies, Reconciler
from trainmaster_operator.runtime.tasks_that_end_together import until_one_ends
from trainmaster_operator.runtime.work_queue import WorkQueue

log = logging.getLogger(__name__)

PASSES_END_WITHIN_S = 2.0  # Seconds for which passes may continue when the operator is asked to stop.
STUCK_S = 120.0  # Bookmarks come every minute.
PASS_S_PER_POD = 200e-6
LATE_JOBS_S = 10.0
"""Seconds for which a new leader does not take a job that it has not heard of for gone: the server of its first list
may have been behind, and then the watch delivers the job later. Agents of a job that is gone end themselves when they
hear so, and cannot be called back."""


def default_policies() -> Policies:
    """Return the planner and the builders of manifests."""
    from trainmaster_operator.manifests.job_pod import pod_name, render_pod
    from trainmaster_operator.manifests.services import build_service
    from trainmaster_operator.planning.plan import plan
    from trainmaster_operator.planning.rounds.directives import directives

    return Policies(plan, directives, render_pod, build_service, pod_name)


class Operator:
    """Call `run`; it ends when it is cancelled, stopped, or the lease is lost."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        chance: random.Random,
        settings: Settings,
        policies: Policies | None = None,
        authenticator: Authenticator | None = None,
        leader: Leadership | None = None,
        metrics: Metrics | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.queue: WorkQueue[JobKey] = WorkQueue(chance, FIRST_RETRY_S, LONGEST_RETRY_S)
        self.leader: Leadership = leader or Elector(cluster, clock, chance, settings.identity, settings.lease)
        self._policies = policies or default_policies()
        self._authenticator = authenticator or TokenHashes(self._policies.pod_name, clock)
        self._random = chance
        self.jobs: Informer[JobRecord] = Informer(
            cluster,
            JOB,
            slim=job_record,
            owner=job_key,
            changed=self._mark,
            chance=chance,
            namespace=settings.namespace,
            relist_s=settings.relist_jobs_s,
        )
        self.pods: Informer[PodEntry] = Informer(
            cluster,
            POD,
            slim=lambda obj, known: pod_entry(obj, known, clock.monotonic()),
            owner=owning_job,
            changed=self._mark,
            chance=chance,
            labels={f"{GROUP}/job": None},
            namespace=settings.namespace,
            minor=lambda entry: entry.thrives,
            changed_little=self._mark_later,
        )
        # Only pods of a cluster have names that depend on a Service.
        self.services: Informer[str] | None = None
        if settings.pods is not None and settings.pods.in_cluster:
            self.services = Informer(
                cluster,
                SERVICE,
                slim=lambda obj, known: controller_uid(obj),
                owner=owning_job,
                changed=self._mark,
                chance=chance,
                labels={f"{GROUP}/job": None},
                namespace=settings.namespace,
            )
        self.fleet = Fleet(
            clock,
            self._authenticate,
            self._heard,
            self._finds_job,
            settings.fleet,
            self.metrics.decide_seconds.observe,
            self._relay,
        )
        self.events = EventWriter(cluster, clock, counted=lambda result: self.metrics.events.labels(result).inc())
        self.ledger: Ledger | None = None
        self.node_taints: NodeTaints | None = None
        if settings.judge_nodes:
            self.ledger = Ledger(cluster, clock, self.leader, settings.lease.namespace, self._node_names)
            may_taint = nodes if settings.taint_nodes else None
            self.node_taints = NodeTaints(may_taint, clock, self.leader, self.ledger.score)
        self.failures = ApiFailures(clock)
        self._budget = ProgressBudget(clock, settings.progress_interval_s, settings.progress_rate)
        self.reconciler = Reconciler(
            cluster=cluster,
            clock=clock,
            jobs=self.jobs,
            pods=self.pods,
            services=self.services,
            fleet=self.fleet,
            leader=self.leader,
            policies=self._policies,
            pod_defaults=settings.pods or PodDefaults(settings.operator_url, settings.extra_env),
            ca_bundle=settings.ca_bundle,
            peer_key=settings.peer_key,
            ledger=self.ledger,
            node_taints=self.node_taints,
            nodes=nodes if settings.list_nodes else None,
            budget=self._budget,
            events=self.events,
            metrics=self.metrics,
            looks=self.queue.looked_at,
        )
        self._passes = PassRetries(
            clock=clock,
            queue=self.queue,
            jobs=self.jobs,
            pods=self.pods,
            fleet=self.fleet,
            leader=self.leader,
            reconciler=self.reconciler,
            failures=self.failures,
            events=self.events,
            metrics=self.metrics,
        )
        self._known = Known(self.pods, self.fleet.refuse_gone)
        self._clock = clock
        self.lag = LoopLag()  # A caller with a real event loop runs it too.
        self._serving = False
        self._leads_since = float("inf")  # Monotonic time.
        self._stopping = asyncio.Event()
        self.queue.on_wait = self.metrics.queue_wait_seconds.observe
        self.job_metrics = JobMetrics(self.fleet, settings.finished_metrics_s)
        observe(self)

    @property
    def warm(self) -> bool:
        """True if the caches are filled, so that this operator can lead at once."""
        return self.jobs.synced.is_set() and self.pods.synced.is_set()

    @property
    def ready(self) -> bool:
        """True if this operator leads and its caches are filled."""
        return self.leader.leading and self.warm

    def stop(self) -> None:
        """Ask the operator to stop; `run` then ends."""
        self._stopping.set()

    def _node_names(self) -> Iterator[str]:
        return (entry.record.node for entry in self.pods.values())

    def stuck(self) -> list[str]:
        """Return sentences that say what has stopped in this process, where only a restart helps."""
        found = []
        relist_s = (self.settings.relist_jobs_s or 0.0) * 1.2
        for informer, allowed_s in ((self.jobs, STUCK_S + relist_s), (self.pods, STUCK_S)):
            if informer.stuck_s > allowed_s:
                found.append(f"nothing was heard of any {informer.kind} for {informer.stuck_s:.0f} s")
        if self._serving and self.queue.oldest_s > STUCK_S:
            found.append(f"the next job has waited for a pass for {self.queue.oldest_s:.0f} s")
        return found

    def render_metrics(self) -> bytes:
        """Return the text for Prometheus."""
        return self.metrics.render(self._clock.monotonic()) + self.job_metrics.render(
            self._list_jobs_with_metrics(), self._clock.now()
        )

    async def collect_metrics(self) -> bytes:
        """Return the same text as `render_metrics`, and let other tasks run meanwhile."""
        text = self.metrics.render(self._clock.monotonic())
        return text + await self.job_metrics.collect(self._list_jobs_with_metrics(), self._clock.now())

    def _list_jobs_with_metrics(self) -> list[JobRecord]:
        """Return the jobs to export metrics for; [] if job metrics are off or this operator does not lead."""
        if not self.settings.job_metrics or not self.leader.leading:
            return []
        return [record for record in self.jobs.values() if not record.is_managed_elsewhere]

    async def run(self) -> None:
        """Run until `stop`; then finish the passes under way and release the lease. Raise NotLeading if the lease is
        lost."""
        try:
            services = [self.services.run()] if self.services is not None else []
            await until_one_ends(self._asked_to_stop(), self.jobs.run(), self.pods.run(), *services, self._lead())
        finally:
            self._serving = False
            self.queue.shutdown()
            await self.leader.release()
        await self.events.drain()

    async def _asked_to_stop(self) -> None:
        await self._stopping.wait()
        self.queue.shutdown(drop=True)
        if self._serving:
            await asyncio.sleep(PASSES_END_WITHIN_S)  # The end of the last worker ends this sleep earlier.
            log.warning("stopping with %d passes unfinished", self.queue.processing)

    async def _lead(self) -> None:
        await self.leader.acquire()
        of_nodes = [part.run() for part in (self.ledger, self.node_taints) if part is not None]
        await until_one_ends(self.leader.hold(), self.events.run(), self._resync(), *of_nodes, self._serve())

    async def _serve(self) -> None:
        await self.jobs.synced.wait()
        await self.pods.synced.wait()
        self.reconciler.leads_from_now()  # Before this moment no agent could be heard.
        self._leads_since = self._clock.monotonic()
        self._serving = True
        for key in self.jobs.names():
            self.queue.add(key)
        workers = [asyncio.create_task(self._passes.work()) for _ in range(self.settings.workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _mark(self, key: JobKey) -> None:
        """Queue a job. A standby queues nothing; when it leads, it queues all jobs."""
        if self._serving:
            self.queue.add(key)

    def _mark_later(self, key: JobKey) -> None:
        """Queue a job whose pod changed a little. A pass reads all pods of a job, so while many of them start, one
        pass serves several changes."""
        if self._serving:
            pods = self.pods.count(key)
            self.queue.add_after(key, pods * PASS_S_PER_POD if pods >= CROWD else 0.0)

    async def _resync(self) -> None:
        """Queue every job regularly, in case events were lost."""
        while True:
            await asyncio.sleep(self.settings.resync_s * (1 + 0.2 * self._random.random()))
            for key in self.jobs.names():
                self.queue.add(key)

    # -- for the fleet

    def _heard(self, key: Key, delay_s: float) -> None:
        job = JobKey(*key)
        if delay_s == 0:
            self.queue.add(job)
        elif not self.queue.failures(job):  # Progress of a job whose passes fail does not shorten its back-off.
            # Among hundreds of jobs it may take long until its progress may be written; earlier passes would be
            # useless.
            self.queue.add_after(job, max(delay_s, self._budget.turn_s(job)))

    def _relay(self, key: Key, reason: str, message: str) -> None:
        record = self.jobs.get(JobKey(*key))
        if reason == checkpoint_conditions.FAILED:
            self.metrics.checkpoint_failures.inc()
        if record is not None:
            self.events.relay(record, reason, message)

    def _finds_job(self, key: Key, uid: str) -> bool:
        if not self.ready:
            raise Refused(503, "this operator does not lead yet")
        record = self.jobs.get(JobKey(*key))
        if record is not None and record.uid == uid:
            return True
        if self._clock.monotonic() - self._leads_since < LATE_JOBS_S:
            raise Refused(503, f"job {key[0]}/{key[1]} is not known yet")
        return False

    async def _authenticate(self, credential: Credential, claim: Claim) -> Admission:
        if not self.ready:
            raise Refused(503, "this operator does not lead yet")
        return await self._authenticator.authenticate(credential, claim, self._known)
