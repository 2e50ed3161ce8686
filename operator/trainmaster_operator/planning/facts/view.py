"""The observation ordered by slot, which every policy reads. It is built once in a pass, in O(slots).

Every slot has a pod. Members are the slots whose ranks form the world. The other slots are spares, pods that came for a
larger size, and pods that remain after the job became smaller. Only the loss of a member is a failure of the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.contract.wire import RankReport
from trainmaster_operator.api.compact_lists import unpack_counts, unpack_ranges
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.computed_once import attribute
from trainmaster_operator.planning.facts.frozen_record import dataclass
from trainmaster_operator.planning.facts.observation import (
    AgentRecord,
    JobSpec,
    JobState,
    Observation,
    PodRecord,
    Refusal,
)

WORKER = "worker"

BEFORE_STEPS = ("", "START", "RENDEZVOUS", "BUILD", "LOAD")

ENDED = ("Succeeded", "Failed")


def report_interval_s(slots: int) -> float:
    """Return the seconds between two reports of each agent, chosen so that a job of any size sends at most 200
    reports a second."""
    return max(0.5, slots / 200)


@dataclass(frozen=True)
class View:
    """Spec, status and observation of a job at one time, with the pods and agents ordered by slot. `now`: seconds
    since 1970."""

    spec: JobSpec
    status: JobState
    observed: Observation
    now: float
    incarnations: tuple[int, ...]  # The incarnation of each slot in the status.
    pods: tuple[PodRecord | None, ...]  # For each slot: the pod of the current incarnation.
    others: tuple[PodRecord, ...]  # Pods of another incarnation, or of a slot that no longer exists.
    agents: tuple[AgentRecord | None, ...]  # For each slot: the agent in that pod, if this leader has heard it.

    @attribute
    def _in_round(self) -> list[AgentRecord]:
        if not self.round_is_open:
            return []
        agents = (self.agents[slot] for slot in sorted(self.members))
        return [a for a in agents if a is not None and a.round == self.status.round]

    @property
    def slots(self) -> int:
        """Number of slots, spares included."""
        return len(self.incarnations)

    @attribute
    def members(self) -> tuple[int, ...]:
        """The slots in rank order: those of the open round or, while a round forms, the preferred ones."""
        known = unpack_ranges(self.status.roundMap)
        if known:
            return tuple(known)
        return tuple(range(min(self.slots, self.status.workers.replicas or self.slots)))

    @attribute
    def parked(self) -> tuple[int, ...]:
        """The slots without a rank, in their order."""
        members = frozenset(self.members)
        return tuple(slot for slot in range(self.slots) if slot not in members)

    @attribute
    def round_is_open(self) -> bool:
        """True if ranks run, or may run, in the round of the status."""
        return self.status.round > 0 and self.status.roundStore != ""

    @property
    def scripted(self) -> bool:
        """True if the ranks run a user's own script. It may write to storage without a fence, and it may count steps
        per process."""
        return self.spec.framework is not Framework.TRAINMASTER

    @attribute
    def interval_s(self) -> float:
        """Seconds between two reports of each agent: what the size of this job requires, or what all jobs together
        require."""
        return max(report_interval_s(self.slots), self.observed.report_interval_s)

    @attribute
    def lost_after_s(self) -> float:
        """Seconds of silence after which an agent counts as dead. It is at least four report intervals, so that
        several reports must be missing."""
        return max(self.spec.recovery.agentLostSeconds, 4 * self.interval_s)

    @property
    def refusal(self) -> Refusal | None:
        """Why pods cannot be created; None if they can, or if the reason may pass in a moment."""
        refusal = self.observed.refusal
        return None if refusal is None or refusal.passing else refusal

    def in_round(self) -> list[AgentRecord]:
        """Return the agents of members that run the status' round, ordered by slot."""
        return self._in_round

    @property
    def all_saved(self) -> bool:
        """True if every rank of the round has ended, and some of them because they were asked to save and stop."""
        agents = self.in_round()
        ended = all(a.saved or a.done for a in agents) and any(a.saved for a in agents)
        return ended and len(agents) == len(self.members)

    def highest_step(self) -> int:
        """Return the highest step that this job has ever reached."""
        steps = [stepped_to(self, a, r) for a in self.in_round() for r in a.ranks]
        return max([self.status.progress.highestStep, *steps])


def stepped_to(view: View, agent: AgentRecord, rank: RankReport) -> int:
    """Return the step that a rank has reached by its own work in this round; 0 before its first completed step.

    A round that resumes where the job ends has nothing left to do: its ranks are done at that step.
    """
    if agent.done:
        return rank.step
    resumed = agent.resumed_step or 0
    if agent.resumed_step is None and rank.phase.upper() in BEFORE_STEPS:
        return 0
    return rank.step if rank.step > resumed else 0


def look(spec: JobSpec, status: JobState, observed: Observation, now: float) -> View:
    """Return the view of a job. `now`: seconds since 1970."""
    incarnations = unpack_counts(status.incarnations)
    pods: list[PodRecord | None] = [None] * len(incarnations)
    others: list[PodRecord] = []
    for pod in observed.pods:
        if pod.role != WORKER:
            continue
        if is_current(pod, incarnations):
            pods[pod.slot] = pod
        else:
            others.append(pod)
    agents = [_current(observed.agents.get(slot), pods[slot], number) for slot, number in enumerate(incarnations)]
    if spec.framework is not Framework.TRAINMASTER:
        agents = script_step_count.of_the_job(status, agents)
    return View(spec, status, observed, now, tuple(incarnations), tuple(pods), tuple(others), tuple(agents))


def is_current(pod: PodRecord, incarnations: Sequence[int]) -> bool:
    """Return whether the pod has the incarnation that the status gives its slot."""
    return 0 <= pod.slot < len(incarnations) and pod.incarnation == incarnations[pod.slot]


def _current(agent: AgentRecord | None, pod: PodRecord | None, incarnation: int) -> AgentRecord | None:
    """Return the agent if its report is about the current incarnation, else None. Its last report still counts after
    its pod has vanished."""
    if agent is None or agent.incarnation != incarnation or (pod is not None and agent.pod_uid != pod.uid):
        return None
    return agent
