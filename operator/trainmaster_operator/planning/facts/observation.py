"""What the planner sees and what it answers. Plain values: no I/O, no clock, no randomness."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from trainmaster.contract.wire import Granted, RankReport, StoreAddress, Trained, UploadReport, Verdict
from trainmaster_operator.api.job import JobSpec
from trainmaster_operator.planning.facts.frozen_record import dataclass
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.placement.node_score import Suspicion


@dataclass(frozen=True)
class PodRecord:
    """A pod of the job in the cluster, slim. It speaks of the agent's container: sidecars may end or run on."""

    name: str
    uid: str
    role: str
    slot: int
    incarnation: int
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    deleting: bool = False
    deleting_s: float = 0.0  # since this process first saw it so
    node: str = ""
    reason: str = ""  # of the pod or of its first bad container: OOMKilled, Evicted, ErrImagePull, Unschedulable, ...
    message: str = ""
    exit_code: int | None = None
    running_s: float = 0.0  # since it runs; 0 when unknown: then an agent that was never heard is never given up
    disruption: str = ""  # why the cluster takes it away: PreemptionByScheduler, DeletionByTaintManager, ...
    node_lost: bool = False  # the cluster says that its node doesn't answer
    unheard_s: float = 0.0  # since this process saw it bound to a node whose kubelet hasn't taken note of it
    rejected: bool = False  # it ended before anything in it ran: its node turned it away
    lingers: bool = False  # the agent's container has ended, others of the pod still run
    placed_at: str = ""  # when the scheduler found its node, as the cluster tells; "" where it doesn't
    keeps_away: bool = False  # its affinity excludes nodes by name
    unanswered_s: float = 0.0  # since this leader last answered its agent, or began to lead; 0: unknown


@dataclass(frozen=True)
class AgentRecord:
    """What this leader has heard of one slot's agent. Only of a pod that lives and whose incarnation is current."""

    slot: int
    incarnation: int
    pod_uid: str
    round: int = 0  # whose ranks it runs
    parked: bool = False  # it runs no ranks any more, as far as it has said
    minor: int = 0  # of such a round: how many were opened by the grant since a leader published one
    granted: tuple[Granted, ...] = ()  # those of them that it opened itself
    joined: bool = True  # it holds (or has just held) a join poll
    silent_s: float = 0.0  # since this leader last heard it
    ranks: tuple[RankReport, ...] = ()
    verdict: Verdict | None = None  # the first failure in `round` on this pod
    verdict_age_s: float = 0.0
    done: bool = False
    saved: bool = False
    saved_s: float = 0.0  # at its last report: since the end of its ranks' last step
    nothing_saved: bool = False  # its ranks have stopped on request, and nothing is known to be saved
    upload: UploadReport | None = None  # that storage does not take
    store_lost: bool = False
    next_store: StoreAddress | None = None
    peer: StoreAddress | None = None  # where it answers other agents of its job
    neighbour_lost: int | None = None  # this slot, the next in the order of its round, doesn't answer it
    stop_ack: int | None = None
    stop_passed: int | None = None
    resumed_step: int | None = None
    resumed_tier: str = ""
    memory_step: int = 0
    last_save: int = 0  # of a script: the step after which it last called torch.save; 0: after none
    saved_before: int = 0  # the same of the round before, in steps of its process
    loaded: bool = False  # of a script that counts from 0 in each process: it loaded a file before its first step
    draining: bool = False
    warming: bool = False  # what its ranks are forked from isn't ready
    software: dict[str, str] = field(default_factory=dict)  # that its ranks run, see `wire.software`
    clock: dict[str, float] = field(default_factory=dict)
    pauses: dict[str, list[float]] = field(default_factory=dict)  # phase -> [how many, typical, longest, total]
    trained: tuple[Trained, ...] = ()  # when its rounds did, with ages at its last report...
    reported_s: float = 0.0  # ...which came so long ago


@dataclass(frozen=True)
class CheckpointSeen:
    step: int
    round: int
    tier: str


@dataclass(frozen=True)
class SaveFailed:
    """A checkpoint that could not be written to storage, and why."""

    step: int
    round: int
    message: str


@dataclass(frozen=True)
class Refusal:
    """Why pods that ought to be there couldn't be created. Soft state of this leader, which tries again."""

    reason: str  # Refused, QuotaExceeded, ConfigError, NameTaken, NameInUse, or the API server's own
    message: str
    again_in_s: float  # 0: now; infinity: never, since it would be in vain
    fatal: bool = False  # it would be refused each time, and the job is to blame
    passing: bool = False  # it may be over in a moment: it is waited for, and nobody is told


@dataclass(frozen=True)
class OperatorAbsence:
    """No operator led between these times (seconds since 1970), as far as the Lease tells."""

    since: float
    until: float


@dataclass(frozen=True)
class NewPlaces:
    """Signs that a cluster makes room for a job whose pods wait: seconds since the newest of each."""

    asked_s: float = float("inf")  # an event told that an autoscaler brings a node for one of the pods
    joined_s: float = float("inf")  # a node joined the cluster


@dataclass(frozen=True)
class Observation:
    """All that a pass decides from. `agents` holds no entry for an agent that this leader hasn't heard yet."""

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    epoch: int
    pods: tuple[PodRecord, ...] = ()
    agents: dict[int, AgentRecord] = field(default_factory=dict)
    checkpoint: CheckpointSeen | None = None  # the newest that agents reported
    failed_save: SaveFailed | None = None  # the newest that this leader has heard of
    refusal: Refusal | None = None
    report_interval_s: float = 0.0  # the shortest that this leader asks of agents, since it has so many of them
    suspicion: Suspicion = field(default_factory=Suspicion)  # of nodes, by all jobs
    new_places: NewPlaces = field(default_factory=NewPlaces)
    tainted: tuple[str, ...] = ()  # nodes that this operator keeps free of pods by a taint
    revision: str = ""  # the name of what a run would keep that began now
    waiting: tuple[str, ...] = ()  # paths of edited fields that the next run will have
    revision_lost: bool = False  # what this run keeps can't be had any more
    in_cluster: bool = False  # its pods are containers; else processes, which share the files of one machine
    leading_s: float = 0.0  # how long this leader has led: silence is judged only after it has heard an agent
    absence: OperatorAbsence | None = None  # before this leader


class EventType(str, Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class PlannedEvent:
    type: EventType
    reason: str  # CamelCase, bounded set
    message: str


@dataclass(frozen=True)
class PodToCreate:
    role: str
    slot: int
    incarnation: int


@dataclass(frozen=True)
class PodToDelete:
    name: str
    uid: str
    reason: str
    grace_s: float | None = None  # None: the pod's own; 0: removed without its kubelet's word, since it is dead
    replaced: bool = False  # another takes its place: its name must no longer lead to it


@dataclass(frozen=True)
class Decision:
    """`intent`: the status changed in more than progress. It is written first, its events are told, and nothing else
    happens in this pass (`create` and `delete` are empty).

    Otherwise the status differs from the observed one in progress at most, which may be written later, and the pass
    acts: deletes, then creates, both idempotent. `delete_job`: the job itself is deleted, and its pods with it.
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
]
