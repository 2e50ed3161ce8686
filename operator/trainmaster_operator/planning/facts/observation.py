"""What the planner reads and what it returns: plain values without I/O, clock or randomness."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from trainmaster.contract.wire import Granted, RankReport, StoreAddress, Trained, UploadReport, Verdict
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.frozen_record import dataclass
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.node_suspicion import Suspicion


@dataclass(frozen=True)
class PodRecord:
    """A pod of the job in the cluster, with the fields that the planner needs. The fields are about the agent's
    container; sidecars may end earlier or later."""

    name: str
    uid: str
    role: str
    slot: int
    incarnation: int
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    deleting: bool = False
    deleting_s: float = 0.0  # Seconds since this process first saw that the pod is being deleted.
    node: str = ""
    # The reason of the pod or of its first failing container: OOMKilled, Evicted, ErrImagePull, Unschedulable, ...
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    # Seconds since the pod runs; 0 if unknown. With 0, an agent that was never heard does not count as lost.
    running_s: float = 0.0
    disruption: str = ""  # Why the cluster removes the pod: PreemptionByScheduler, DeletionByTaintManager, ...
    node_lost: bool = False  # True if the cluster says that the pod's node does not answer.
    node_lost_s: float = 0.0  # Seconds since this process first saw that.
    unheard_s: float = 0.0  # Seconds since this process saw the pod bound to a node whose kubelet has not noticed it.
    rejected: bool = False  # True if the pod ended before anything in it ran, because its node rejected it.
    lingers: bool = False  # True if the agent's container has ended and other containers of the pod still run.
    placed_at: str = ""  # The time at which the scheduler found a node, as the cluster reports it; "" if it does not.
    keeps_away: bool = False  # True if the affinity of the pod excludes nodes by name.
    # Seconds since this leader last answered the pod's agent or, before that, began to lead; 0 if unknown.
    unanswered_s: float = 0.0


@dataclass(frozen=True)
class AgentRecord:
    """What this leader has heard from the agent of one slot. There is a record only for a living pod of the current
    incarnation."""

    slot: int
    incarnation: int
    pod_uid: str
    round: int = 0  # The round whose ranks the agent runs.
    round_s: float = float("inf")  # Seconds since this leader first heard that.
    parked: bool = False  # True if the agent runs no ranks any more, as far as it has reported.
    minor: int = 0  # Number of rounds that agents opened by the grant since a leader published one.
    granted: tuple[Granted, ...] = ()  # The rounds of these that this agent opened itself.
    joined: bool = True  # True if the agent holds, or has just held, a join poll.
    silent_s: float = 0.0  # Seconds since this leader last heard the agent.
    ranks: tuple[RankReport, ...] = ()
    verdict: Verdict | None = None  # The first failure in `round` on this pod.
    verdict_age_s: float = 0.0
    done: bool = False
    saved: bool = False
    saved_s: float = 0.0  # Seconds from the end of its ranks' last step to its last report.
    nothing_saved: bool = False  # True if its ranks have stopped on request and no save is known.
    upload: UploadReport | None = None  # A save that storage does not accept.
    store_lost: bool = False
    next_store: StoreAddress | None = None
    peer: StoreAddress | None = None  # The address at which the agent answers other agents of its job.
    # The slot of its neighbour, the next in the order of the round, if that neighbour does not answer it.
    neighbour_lost: int | None = None
    stop_ack: int | None = None
    stop_passed: int | None = None
    resumed_step: int | None = None
    resumed_tier: str = ""
    memory_step: int = 0
    last_save: int = 0  # For a script: the step after which it last called torch.save; 0 if it never did.
    saved_before: int = 0  # The same for the previous round, in steps of its process.
    # For a script that counts from 0 in each process: True if it loaded a file before its first step.
    loaded: bool = False
    draining: bool = False
    warming: bool = False  # True if the process from which ranks are forked is not ready.
    software: dict[str, str] = field(default_factory=dict)  # What its ranks run: `wire.software_differences`.
    clock: dict[str, float] = field(default_factory=dict)
    # By phase: [count, typical, longest, total], in seconds.
    pauses: dict[str, list[float]] = field(default_factory=dict)
    trained: tuple[Trained, ...] = ()  # When its rounds trained, with ages at the time of its last report.
    reported_s: float = 0.0  # Seconds since that report.


@dataclass(frozen=True)
class CheckpointSeen:
    """The newest checkpoint on storage that agents reported."""

    step: int
    round: int
    tier: str


@dataclass(frozen=True)
class SaveFailed:
    """A checkpoint that could not be written to storage, and the reason."""

    step: int
    round: int
    message: str


@dataclass(frozen=True)
class Refusal:
    """Why pods that should exist could not be created. Only this leader keeps it, and it tries again."""

    reason: str  # Refused, QuotaExceeded, ConfigError, NameTaken, NameInUse, or the API server's own reason.
    message: str
    again_in_s: float  # Seconds until the next try. 0: now. Infinity: never, because the result would be the same.
    fatal: bool = False  # True if the API server would refuse each try and the job is to blame.
    passing: bool = False  # True if the reason may pass in a moment: then the operator waits and reports nothing.


@dataclass(frozen=True)
class OperatorAbsence:
    """A time in which no operator led, as far as the Lease shows. `since` and `until` are seconds since 1970."""

    since: float
    until: float


@dataclass(frozen=True)
class StandbyAnswers:
    """What standbys of the operator may have told the agents of scripts while they did not reach the API server."""

    # Seconds since such an answer may last have kept ranks alive. Negative: seconds until none does any more.
    ended_s: float = float("inf")
    standby: str = ""  # If negative: the identity of the standby, which is the name of its pod.


@dataclass(frozen=True)
class NewPlaces:
    """Signs that a cluster makes room for a job whose pods wait: seconds since the newest sign of each kind."""

    asked_s: float = float("inf")  # An event said that an autoscaler adds a node for one of the pods.
    joined_s: float = float("inf")  # A node joined the cluster.


@dataclass(frozen=True)
class Observation:
    """All that a pass decides from. `agents` has no entry for an agent that this leader has not heard yet."""

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    epoch: int
    pods: tuple[PodRecord, ...] = ()
    agents: dict[int, AgentRecord] = field(default_factory=dict)
    checkpoint: CheckpointSeen | None = None  # The newest checkpoint that agents reported.
    failed_save: SaveFailed | None = None  # The newest failed save that this leader has heard of.
    refusal: Refusal | None = None
    # The shortest report interval that this leader asks of agents, because it serves many of them.
    report_interval_s: float = 0.0
    suspicion: Suspicion = field(default_factory=Suspicion)  # Reasons to suspect nodes, from all jobs.
    new_places: NewPlaces = field(default_factory=NewPlaces)
    tainted: tuple[str, ...] = ()  # Nodes that this operator keeps free of pods by a taint.
    revision: str = ""  # The name of the revision that a run would have that began now.
    waiting: tuple[str, ...] = ()  # Paths of edited fields that wait for the next run.
    revision_lost: bool = False  # True if the revision of this run no longer exists.
    # True if its pods are containers in a cluster; False if they are processes that share the files of one machine.
    in_cluster: bool = False
    # Seconds for which this leader has led. Silence counts only after this leader has heard an agent.
    leading_s: float = 0.0
    absence: OperatorAbsence | None = None  # The absence before this leader began to lead.
    standby_answers: StandbyAnswers = field(default_factory=StandbyAnswers)


class EventType(str, Enum):
    """The type of a Kubernetes event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class PlannedEvent:
    """An event to emit about the job."""

    type: EventType
    reason: str  # In CamelCase, from a limited set.
    message: str


@dataclass(frozen=True)
class PodToCreate:
    """A pod to create."""

    role: str
    slot: int
    incarnation: int


@dataclass(frozen=True)
class PodToDelete:
    """A pod to delete."""

    name: str
    uid: str
    reason: str
    # None: the grace period of the pod. 0: remove the pod without waiting for its kubelet, because it is dead.
    grace_s: float | None = None
    replaced: bool = False  # True if another pod replaces it, so its name must no longer lead to it.


@dataclass(frozen=True)
class Decision:
    """What to do about the job.

    `intent`: True if the status changed in more than progress. Then the status is written first and its events are
    emitted, and nothing else happens in this pass (`create` and `delete` are empty).

    Otherwise the status differs from the observed one at most in progress, which may be written later, and the pass
    deletes pods and then creates pods; both are idempotent. `delete_job`: delete the job itself, and its pods with it.
    """

    status: JobState
    intent: bool = False
    create: tuple[PodToCreate, ...] = ()
    delete: tuple[PodToDelete, ...] = ()
    delete_job: bool = False
    events: tuple[PlannedEvent, ...] = ()
    requeue_after_s: float | None = None


__all__ = [
    "AgentRecord",
    "CheckpointSeen",
    "Decision",
    "EventType",
    "JobSpec",
    "JobState",
    "NewPlaces",
    "Observation",
    "OperatorAbsence",
    "PlannedEvent",
    "PodRecord",
    "PodToCreate",
    "PodToDelete",
    "Refusal",
    "SaveFailed",
    "StandbyAnswers",
]
