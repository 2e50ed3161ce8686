"""Operators with a bug each, as one might write them. `bug_search` says whether the simulator finds them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from simulation.virtual.virtual_storage import Checkpoint, Storage
from trainmaster.contract.wire import Cause
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cluster.port import JOB, POD, Conflict, NotFound, Object
from trainmaster_operator.manifests.controller_revision import Run
from trainmaster_operator.planning.facts.change import Change
from trainmaster_operator.planning.facts.job_state import JobState, Recovery, Rung
from trainmaster_operator.planning.facts.observation import Decision, JobSpec, Observation, PodToCreate
from trainmaster_operator.planning.facts.view import WORKER, View
from trainmaster_operator.planning.failure import failure_budget, recovery_ladder
from trainmaster_operator.planning.lifecycle import job_progress
from trainmaster_operator.planning.placement import avoided_nodes, gang_release, pods_to_create, scheduling_gates
from trainmaster_operator.planning.rounds import open_round
from trainmaster_operator.planning.status_mapping import write_status
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.job_pass.pod_writes import PodWrites
from trainmaster_operator.runtime.job_pass.refused_pod_retries import NEVER_S, Refusals
from trainmaster_operator.runtime.leader.lease import Elector
from trainmaster_operator.runtime.operator import default_policies
from trainmaster_operator.runtime.reconcile import Policies, Reconciler

Plan = Callable[[JobSpec, JobState, Observation, float], Decision]
Made = contextlib.AbstractContextManager[Policies]


@dataclass(frozen=True)
class Bug:
    name: str
    made: Callable[[], Made]  # the operator's policies with it, fresh for each schedule
    scenario: str = ""  # of the crash matrix: an operator must die at a certain write for it to show
    growing: bool = False  # it shows only on clusters whose nodes come late


def _planned(change: Callable[[Plan], Plan]) -> Callable[[], Made]:
    @contextlib.contextmanager
    def made() -> Iterator[Policies]:
        policies = default_policies()
        yield replace(policies, plan=change(policies.plan))

    return made


def _patched(target: object, name: str, change: Callable[[Any], Any]) -> Callable[[], Made]:
    @contextlib.contextmanager
    def made() -> Iterator[Policies]:
        with mock.patch.object(target, name, change(getattr(target, name))):
            yield default_policies()

    return made


def _count_in_memory(plan: Plan) -> Plan:
    """What was spent is known to the process alone: by its epoch, since each has one of its own."""
    spent: dict[tuple[str, int], list[Any]] = {}

    def forgetful(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        mine = spent.setdefault((observed.uid, observed.epoch), [])
        decision = plan(spec, status.model_copy(update={"spent": mine}), observed, now)
        if decision.intent and decision.status.restarts != status.restarts:
            mine[:] = decision.status.spent
        return replace(decision, status=decision.status.model_copy(update={"spent": status.spent}))

    return forgetful


def _forget_a_spending_at_restart(plan: Plan) -> Plan:
    """The first write of a new leader drops the last entry."""

    def forgetful(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        if observed.epoch > status.leaderEpoch and status.spent:
            status = status.model_copy(update={"spent": status.spent[:-1]})
        return plan(spec, status, observed, now)

    return forgetful


def _act_before_intent(writes: Any) -> Any:
    """Pods of the old incarnations are deleted, and those of the new created, before the status says so."""

    async def hasty(self: Any, record: Any, decision: Decision) -> float | None:
        if decision.intent and record.status.incarnations:
            kept = self._revisions._known[record.key].kept
            seen = self._observer.observe(record, kept)
            ahead = self._policies.plan(record.job.spec, decision.status, seen, self._clock.now())
            await self._act(record, seen, ahead, kept.run)
        done: float | None = await writes(self, record, decision)
        return done

    return hasty


def _trust_a_stale_list(apply: Any) -> Any:
    """Whatever comes last is true: versions aren't compared."""

    def trusting(self: Any, deleted: bool, obj: Object) -> None:
        key = JobKey(obj["metadata"]["namespace"], obj["metadata"]["name"])
        if deleted:
            self._tell(self._drop(key))
        else:
            self._put(key, obj)
            self._tell(self._entries[key])

    return trusting


def _delete_by_name(delete: Any) -> Any:
    """Without the uid: another pod of that name goes as well."""

    async def careless(self: Any, record: Any, pod: Any) -> None:
        self._leader.check()
        with contextlib.suppress(NotFound):
            await self._cluster.delete(
                POD, record.key.namespace, pod.name, grace_s=None if pod.grace_s is None else int(pod.grace_s)
            )
        self._pods.removed(JobKey(record.key.namespace, pod.name), pod.uid)

    return careless


def _keep_hang_state(plan: Plan) -> Plan:
    """How long a rank has been silent is counted from its last step, whatever round that was in."""
    stepped: dict[int, tuple[int, float]] = {}

    def suspicious(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        agents = {}
        for slot, agent in observed.agents.items():
            ranks = []
            for rank in agent.ranks:
                step, at = stepped.get(rank.rank, (0, now))
                if rank.step > step:
                    stepped[rank.rank] = (rank.step, now)
                    at = now
                ranks.append(replace(rank, silent_s=max(rank.silent_s, now - at)))
            agents[slot] = replace(agent, ranks=tuple(ranks))
        return plan(spec, status, replace(observed, agents=agents), now)

    return suspicious


def _ignore_the_epoch(plan: Plan) -> Plan:
    def blind(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        decision = plan(spec, status.model_copy(update={"leaderEpoch": 0}), observed, now)
        if decision.status.leaderEpoch:
            return decision
        return replace(decision, status=decision.status.model_copy(update={"leaderEpoch": status.leaderEpoch}))

    return blind


@contextlib.contextmanager
def _without_epochs() -> Iterator[Policies]:
    """A leader never looks at what epochs jobs and agents have met."""

    async def nothing(self: Any, epoch: int) -> None:
        return

    policies = default_policies()
    with mock.patch.object(Elector, "outgrow", nothing):
        yield replace(policies, plan=_ignore_the_epoch(policies.plan))


def _reuse_the_store(plan: Plan) -> Plan:
    def thrifty(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        decision = plan(spec, status, observed, now)
        before, new = status.lastStore.split(",")[0], decision.status.roundStore
        if before and new and new != before:
            return replace(decision, status=decision.status.model_copy(update={"roundStore": before}))
        return decision

    return thrifty


def _count_the_cascade(plan: Plan) -> Plan:
    """A rank that lost a peer has failed, too."""

    def naive(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        agents = {
            slot: replace(agent, verdict=replace(agent.verdict, cascade=False, cause=Cause.CRASH))
            if agent.verdict is not None
            else agent
            for slot, agent in observed.agents.items()
        }
        return plan(spec, status, replace(observed, agents=agents), now)

    return naive


def _create_beside(absent: Any) -> Any:
    """A successor need not wait until the pod before it is gone."""

    def eager(view: View) -> tuple[PodToCreate, ...]:
        found: tuple[PodToCreate, ...] = absent(replace(view, others=()))
        return found

    return eager


def _open_too_early(may_write: Any) -> Any:
    """A script's round opens while pods of the last one may still run its ranks."""
    return lambda view, able: False


def _forget_the_timer(plan: Plan) -> Plan:
    """Nothing is looked at again unless something happens."""
    return lambda *seen: replace(plan(*seen), requeue_after_s=None)


def _overwrite(writes: Any) -> Any:
    """A conflict is answered by writing the same over whatever is there now."""

    async def forced(self: Any, record: Any, decision: Decision) -> float | None:
        try:
            done: float | None = await writes(self, record, decision)
        except Conflict:
            live = await self._cluster.get(JOB, record.key.namespace, record.key.name)
            body = {**live, "status": write_status(decision.status)}
            self._jobs.wrote(await self._cluster.update_status(JOB, body))
            return None
        return done

    return forced


def _count_on_any_round(plan: Plan) -> Plan:
    """A verdict counts whatever round it belongs to."""

    def timeless(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        agents = {
            slot: replace(agent, round=status.round, verdict=replace(agent.verdict, round=status.round))
            if agent.verdict is not None
            else agent
            for slot, agent in observed.agents.items()
        }
        return plan(spec, status, replace(observed, agents=agents), now)

    return timeless


def _reset_the_budget(charge: Any) -> Any:
    """Each restart starts a budget of its own, whether the job has made a step since or not."""

    def generous(limits: Any, spent: Any, *more: Any) -> Any:
        return charge(limits, [], *more)

    return generous


def _count_twice(restart: Any) -> Any:
    """A restart of a pod is one of its processes as well."""

    def double(view: View, fault: Any, rung: Any, charged: Any, how: str = "", **fields: object) -> Change:
        change: Change = restart(view, fault, rung, charged, how, **fields)
        if charged is not Rung.POD:
            return change
        restarts = change.status.restarts
        counted = restarts.model_copy(update={"inPlace": restarts.inPlace + 1})
        return replace(change, status=change.status.model_copy(update={"restarts": counted}))

    return double


def _tell_any_step(resumed: Any) -> Any:
    """An event tells the step at which a script goes on, also if the script does not say it."""

    def careless(recovery: Recovery) -> str:
        return f"resumed at step {recovery.resumedStep}, {recovery.lostSteps} steps lost"

    return careless


def _resume_from_the_newest(newest: Any) -> Any:
    """Whatever lies there with the highest number, even if its upload isn't over."""

    def hasty(storage: Storage) -> Checkpoint | None:
        saved = [*storage.manifests, *storage.begun]
        return max(saved, key=lambda c: (c.step, c.round), default=None)

    return hasty


def _leave_the_chain(newest: Any) -> Any:
    """The complete checkpoint of the highest step, whoever has written it when."""

    def blind(storage: Storage) -> Checkpoint | None:
        return max(storage.manifests, key=lambda c: (c.step, c.round), default=None)

    return blind


def _build_from_the_live_spec(act: Any) -> Any:
    """A pod is as the job and the operator would have it now, whatever its run began with."""

    async def fresh(self: Any, record: Any, observed: Observation, decision: Decision, run: Run) -> bool:
        if decision.create:
            job = DistributedTrainingJob.model_validate(record.raw)
            run = replace(run, pod=self._policies.render_pod(job, WORKER, self._pod_writes._pod_defaults))
        done: bool = await act(self, record, observed, decision, run)
        return done

    return fresh


def _keep_a_refusal_from_people(of: Any) -> Any:
    """A server that is in trouble may be well again in a moment, however long it has been in trouble."""

    def patient(self: Any, key: Any, uid: str) -> Any:
        refusal = of(self, key, uid)
        may_pass = refusal is not None and refusal.reason not in ("Refused", "ConfigError")
        return replace(refusal, passing=True) if may_pass else refusal

    return patient


def _give_up_after_a_refusal(wait_s: Any) -> Any:
    """What was refused a few times would be refused each time."""

    def impatient(self: Any, uid: str, error: Any, tries: int) -> float:
        return NEVER_S if tries > 3 else float(wait_s(self, uid, error, tries))

    return impatient


def _keep_away_for_ever(relaxed: Any) -> Any:
    """A pod that finds no place goes on to name the nodes that it keeps away from, and nodes keep their taints."""
    return lambda view: None


def _forget_what_appears(fresh_for_s: Any) -> Any:
    """Places are given back by the clock alone."""
    return lambda view, hold, waited: float("-inf")


def _believe_any_sign(count_for: Any) -> Any:
    """What an autoscaler says holds a release up however long it brings nothing."""
    return 10**9


def _count_gated_time(hold: Any) -> Any:
    """A gate is a reason like any other for which pods have no place."""
    return lambda view: False


BUGS = (
    Bug("count in memory", _planned(_count_in_memory), "two rungs spent"),
    Bug("forget a spending at restart", _planned(_forget_a_spending_at_restart), "two rungs spent"),
    Bug("act before intent", _patched(Reconciler, "_write_status", _act_before_intent), "full restart"),
    Bug("trust a stale list", _patched(Informer, "_apply", _trust_a_stale_list)),
    Bug("delete by name without uid", _patched(PodWrites, "delete", _delete_by_name)),
    Bug("forget to reset hang state", _planned(_keep_hang_state)),
    Bug("ignore the leader epoch", _without_epochs),
    Bug("reuse a store", _planned(_reuse_the_store)),
    Bug("count the cascade", _planned(_count_the_cascade)),
    Bug("build a pod from the live spec", _patched(Reconciler, "_act", _build_from_the_live_spec)),
    Bug("create a pod beside the old one", _patched(pods_to_create, "_absent", _create_beside)),
    Bug("open a round before all old pods are gone", _patched(open_round, "_may_still_write", _open_too_early)),
    Bug("keep a refusal from people", _patched(Refusals, "of", _keep_a_refusal_from_people)),
    Bug("give up after a refusal", _patched(Refusals, "_wait_s", _give_up_after_a_refusal)),
    Bug("forget the timer", _planned(_forget_the_timer)),
    Bug("overwrite on conflict", _patched(Reconciler, "_write_status", _overwrite)),
    Bug("count a verdict of an older round", _planned(_count_on_any_round)),
    Bug("reset the budget without progress", _patched(failure_budget, "charge", _reset_the_budget)),
    Bug("count a restart twice", _patched(recovery_ladder, "_restart", _count_twice)),
    Bug("report a step that is not known", _patched(job_progress, "_resumed", _tell_any_step)),
    Bug("resume from an incomplete checkpoint", _patched(Storage, "newest", _resume_from_the_newest)),
    Bug("resume from a checkpoint off the chain", _patched(Storage, "newest", _leave_the_chain)),
    Bug("keep away from nodes for ever", _patched(avoided_nodes, "relax_avoidance", _keep_away_for_ever), growing=True),
    Bug(
        "give places back by the clock alone",
        _patched(gang_release, "_fresh_for_s", _forget_what_appears),
        growing=True,
    ),
    Bug("believe an autoscaler for ever", _patched(gang_release, "SIGNS_COUNT_FOR", _believe_any_sign), growing=True),
    Bug("count the time of gates", _patched(scheduling_gates, "hold", _count_gated_time), growing=True),
)
