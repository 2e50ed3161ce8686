"""One pass over one job: observe, plan, write the status, or act. The parts of a pass that do I/O are here and in
job_pass/.

The intent comes first: whatever a plan changes in the status is written before anything else, with the resourceVersion
for which the plan was made. Then the next turn reads the cache, which holds the reply to that write, and does what the
written status asks for. So a crash between any two writes loses nothing and counts nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from trainmaster.contract.wire import Directive
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.api.job_spec import DistributedTrainingJob, JobSpec
from trainmaster_operator.cluster.nodes_port import Nodes
from trainmaster_operator.cluster.port import (
    JOB,
    Cluster,
    Conflict,
    NotFound,
    Object,
)
from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.control.peer_secrets import peer_secret, with_secret
from trainmaster_operator.manifests.controller_revision import Run
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import (
    Decision,
    Observation,
)
from trainmaster_operator.planning.facts.view import WORKER
from trainmaster_operator.planning.rounds import round_pod_identity
from trainmaster_operator.planning.status_mapping import write_status
from trainmaster_operator.runtime.cache.cache_records import JobRecord, PodEntry
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.job_pass.error_conditions import ErrorConditions, without_reconcile_error
from trainmaster_operator.runtime.job_pass.in_place_resize import Vertical
from trainmaster_operator.runtime.job_pass.job_observer import JobObserver
from trainmaster_operator.runtime.job_pass.job_prerequisites import Surroundings
from trainmaster_operator.runtime.job_pass.pod_dns_names import DnsService, JobService
from trainmaster_operator.runtime.job_pass.pod_writes import PodWrites
from trainmaster_operator.runtime.job_pass.refused_pod_retries import Refusals
from trainmaster_operator.runtime.job_pass.revisions import Revisions
from trainmaster_operator.runtime.job_pass.status_write_budget import ProgressBudget
from trainmaster_operator.runtime.lasting_api_failures import STATUS_WRITE, attempting
from trainmaster_operator.runtime.leader.leader_handover import Inherited
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.leader.operator_conflicts import Rivals
from trainmaster_operator.runtime.nodes.node_health import Ledger
from trainmaster_operator.runtime.nodes.node_taints import NodeTaints
from trainmaster_operator.runtime.observability.events import EventWriter
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.parallel_api_calls import run_all

log = logging.getLogger(__name__)

MAX_TURNS = 16  # Maximum number of turns in one pass. A plan that still wants changes after that does not converge.


class InvalidJob(Exception):
    """The manifest is invalid although it passed the schema."""


class NotConverging(Exception):
    """The planner wants another change each time for the same observation."""


@dataclass(frozen=True)
class Policies:
    """The pure functions that the runtime calls."""

    plan: Callable[[JobSpec, JobState, Observation, float], Decision]
    directives: Callable[[JobSpec, JobState, Observation], Callable[[int], Directive]]
    render_pod: Callable[[DistributedTrainingJob, str, PodDefaults], Object]
    build_service: Callable[[DistributedTrainingJob], Object]
    pod_name: Callable[[str, str, int, int], str]


class Reconciler:
    """Runs the passes over jobs. `services`: the uids of the jobs that own them; None if pods need no names.
    `ca_bundle`: the PEM certificates by which agents recognise the operator; None without TLS. `peer_key`: the key
    from which the secrets between agents are derived; None for no secrets. `looks`: called when a pass reads a job
    from the start, which serves all requests for a pass up to then."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        clock: Clock,
        jobs: Informer[JobRecord],
        pods: Informer[PodEntry],
        fleet: Fleet,
        leader: Leadership,
        policies: Policies,
        pod_defaults: PodDefaults,
        budget: ProgressBudget,
        events: EventWriter,
        metrics: Metrics,
        ledger: Ledger | None = None,
        services: Informer[str] | None = None,
        node_taints: NodeTaints | None = None,
        nodes: Nodes | None = None,
        ca_bundle: Callable[[], str] | None = None,
        peer_key: Callable[[], bytes] | None = None,
        looks: Callable[[JobKey], None] = lambda key: None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._jobs = jobs
        self._fleet = fleet
        self._leader = leader
        self._policies = policies
        self._budget = budget
        self._events = events
        self._metrics = metrics
        self._peer_key = peer_key
        self._looks = looks
        self._ledger = ledger
        self._node_taints = node_taints
        # The version of the job and the epoch of the directives that agents get.
        self._published: dict[JobKey, tuple[str, int]] = {}
        self._refusals = Refusals(clock)
        self._rivals = Rivals(clock)
        self._observer = JobObserver(
            cluster,
            clock,
            leader,
            pods,
            fleet,
            self._refusals,
            ledger,
            node_taints,
            nodes,
            in_cluster=pod_defaults.in_cluster,
        )
        self._vertical = Vertical(cluster, leader, pods, events, metrics)
        render = lambda job: policies.render_pod(job, WORKER, pod_defaults)  # noqa: E731
        self._revisions = Revisions(cluster, leader, render, metrics)
        self._inherited = Inherited(cluster, pods, policies.pod_name)
        served = services.wrote if services is not None else lambda service: None
        dns = DnsService(cluster, leader, policies.build_service, served)
        self._surroundings = Surroundings(cluster, leader, dns, pod_defaults, ca_bundle)
        self._service = JobService(clock, dns, services)
        self._errors = ErrorConditions(cluster, clock, jobs, leader, events, metrics, self._service)
        self._pod_writes = PodWrites(
            cluster,
            clock,
            leader,
            pods,
            pod_defaults,
            self._surroundings,
            self._refusals,
            node_taints,
            events,
            metrics,
        )

    def leads_from_now(self) -> None:
        """Record that this operator begins to lead."""
        self._observer.leads_from_now()
        self._surroundings.leads_from_now()

    async def reconcile(self, key: JobKey) -> float | None:
        """Bring a job to a state that needs no write. Return the seconds until the next pass, or None if only a
        change requires one."""
        for _ in range(MAX_TURNS):
            self._looks(key)
            record = self._jobs.get(key)
            if record is None or record.is_managed_elsewhere:
                self.forget(key)
                return None
            if record.migration:
                await self._errors.leave_alone(record)
                return None
            if record.job is None:
                raise InvalidJob(record.problem)
            met = max(record.status.leaderEpoch, self._fleet.epoch(key))
            if met > self._leader.epoch:
                self._rivals.meet(key)
                await self._leader.outgrow(met)
            if not record.status.phase.finished:
                await self._surroundings.remind(record.key.namespace)
                if self._inherited.is_new(record):
                    await self.refresh(key)
                    continue
            kept = await self._revisions.look(record)
            record = kept.obeyed_by(record)
            assert record.job is not None
            await self._inherited.find(record)
            observed = self._observer.observe(record, kept)
            if self._ledger is not None:
                self._ledger.learn(record, observed.pods)
            await self._service.serve(record, observed)
            if self._publish(record, observed):
                await asyncio.sleep(0)  # Polls that it woke are answered before the next turn.
            decision = self._policies.plan(record.job.spec, record.status, observed, self._clock.now())
            wait_s = await self._write_status(record, decision)
            if wait_s is None or await self._act(record, observed, decision, kept.run):
                continue
            await self._vertical.fit(record, kept.run.pod)
            if self._node_taints is not None and record.status.avoidedInVain:
                await self._node_taints.allow(record.status.avoidNodes)
            news, look_s = await self._observer.ask_around(record)
            if news or await self._errors.tell_standing(record, observed):
                continue
            return _sooner(decision.requeue_after_s, min(wait_s, look_s, self._service.due_s(record)))
        raise NotConverging(f"{MAX_TURNS} passes in succession changed the status again")

    async def bundle_changed(self) -> None:
        """Write the operator's certificates into every namespace with an unfinished job. It costs nothing where they
        are known already. Raise NotLeading."""
        records = [record for key in self._jobs.names() if (record := self._jobs.get(key)) is not None]
        ours = [r for r in records if r.job is not None and not r.is_managed_elsewhere]
        spaces = {r.key.namespace for r in ours if not r.status.phase.finished}
        await self._surroundings.tell_bundle(sorted(spaces))

    async def refresh(self, key: JobKey) -> None:
        """Read the job from the API server into the cache, after a conflict."""
        try:
            self._jobs.wrote(await self._cluster.get(JOB, key.namespace, key.name))
        except NotFound:
            record = self._jobs.get(key)
            if record is not None:
                self._jobs.removed(key, record.uid)

    async def quarantine(self, key: JobKey, reason: str, message: str) -> None:
        """Set condition ReconcileError on a job that cannot be handled. Raise ApiError if it cannot be written."""
        record = self._jobs.get(key)
        if record is not None:
            await self._errors.quarantine(record, reason, message)

    def forget(self, key: JobKey) -> None:
        """Forget everything about a job that is gone."""
        self._fleet.forget(key)
        self._budget.forget(key)
        self._published.pop(key, None)
        self._errors.forget(key)
        self._refusals.forget(key)
        self._service.refusals.forget(key)
        self._rivals.forget(key)
        self._inherited.forget(key)
        self._events.forget(key)
        self._surroundings.forget(key)
        self._vertical.forget(key)
        self._revisions.forget(key)
        if self._ledger is not None:
            self._ledger.forget(key)
        self._observer.forget(key)

    def _publish(self, record: JobRecord, observed: Observation) -> bool:
        """Publish directives from the persisted status. Return False if agents already have this version, or if a
        newer status must be written first."""
        if self._published.get(record.key) == (record.version, self._leader.epoch):
            return False
        if round_pod_identity.replaced(record.status, observed.pods):
            return False
        self._leader.check()
        assert record.job is not None
        status = record.status
        told = self._policies.directives(record.job.spec, status, observed)
        secret = peer_secret(self._peer_key(), record.uid, status.round) if self._peer_key is not None else ""

        def directive_of(slot: int) -> Directive:
            return with_secret(told(slot), secret) if secret else told(slot)

        self._fleet.publish(
            record.key,
            record.uid,
            status.round,
            unpack_counts(status.incarnations),
            directive_of,
        )
        self._published[record.key] = (record.version, observed.epoch)
        return True

    # -- write

    async def _write_status(self, record: JobRecord, decision: Decision) -> float | None:
        """Write the status that a decision asks for. Return None if it was written and the job must be planned
        again; otherwise the seconds until progress may be written, or infinity if nothing is to be written."""
        old, new = record.status, decision.status
        if new is old or new == old:
            return float("inf")
        if new.phase.finished:
            new = without_reconcile_error(new)  # No further pass may come.
        only_progress = not decision.intent
        if only_progress:
            wait_s = self._budget.wait_s(record.key)
            if wait_s > 0:
                return wait_s
        if new.revision and (new.revision, new.startTime) != (old.revision, old.startTime):
            await self._revisions.keep(record, new)
            self._refusals.forget(record.key)  # The pods that were refused are no longer wanted.
        self._leader.check()
        self._budget.spend(record.key, counts=only_progress)
        self._metrics.writes.labels("progress" if only_progress else "intent").inc()
        body = {**record.raw, "status": write_status(new, record.unknown)}
        with attempting(STATUS_WRITE):
            written = await self._cluster.update_status(JOB, body)
        self._metrics.wrote(record.key, old, new, self._clock.monotonic())
        self._inherited.wrote(record.key, record.uid, new.incarnations)
        known = self._jobs.wrote(written)
        published = self._published.get(record.key)
        if only_progress and published is not None and published[0] == record.version:
            # Directives do not contain progress.
            self._published[record.key] = (written["metadata"]["resourceVersion"], published[1])
        if known is not None and decision.events:
            self._events.emit(known, decision.events)
        # Nothing follows from progress. While thousands of agents report, each turn would find more of it.
        return float("inf") if only_progress and not (decision.create or decision.delete) else None

    # -- act

    async def _act(self, record: JobRecord, observed: Observation, decision: Decision, run: Run) -> bool:
        """Create and delete pods. Return True if the caller must plan again."""
        if decision.delete or decision.delete_job:
            live = await self._cluster.get(JOB, record.key.namespace, record.key.name)
            if live["metadata"]["resourceVersion"] != record.version:
                self._jobs.wrote(live)
                known = self._jobs.get(record.key)
                if known is not None and known.version == record.version:
                    raise Conflict(f"{record.key}: the server's job is older than the cache's")
                return True
            if decision.delete_job:
                await self._delete_job(record)
                return True
            await run_all((self._pod_writes.delete(record, pod) for pod in decision.delete), len(decision.delete))
        if decision.create:
            await self._pod_writes.create_all(record, decision.create, run)
        elif observed.refusal is not None and observed.refusal.again_in_s <= 0:
            self._refusals.forget(record.key)  # The pods that were refused are no longer wanted.
        return bool(decision.delete or decision.create)

    async def _delete_job(self, record: JobRecord) -> None:
        """Delete the job. Its pods and its Service belong to it and are deleted with it."""
        self._leader.check()
        self._metrics.writes.labels("delete").inc()
        with contextlib.suppress(NotFound), attempting("the job can't be deleted"):
            await self._cluster.delete(JOB, record.key.namespace, record.key.name, uid=record.uid)
        log.info("%s: deleted the job: ttlSecondsAfterFinished is over", record.key)
        self._jobs.removed(record.key, record.uid)


def _sooner(a: float | None, b: float) -> float | None:
    """Return the smaller of two waits in seconds; None if there is none."""
    soonest = b if a is None else min(a, b)
    return None if soonest == float("inf") else soonest
