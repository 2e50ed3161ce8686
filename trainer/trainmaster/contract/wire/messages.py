"""Messages between an agent and the operator, as plain dataclasses. `message_codec` converts them to JSON.

All durations are in seconds and all sizes in bytes. No message contains a time of day: the clocks of two machines
cannot be compared, so messages have ages and durations only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from trainmaster.contract.wire.causes_and_exit_codes import Cause, Recurrence
from trainmaster.contract.wire.message_codec import PROTOCOL
from trainmaster.contract.wire.pod_usage import Usage
from trainmaster.contract.wire.stalled_uploads import UploadReport
from trainmaster.contract.wire.training_times import Trained

SESSION_HEADER = "Trainmaster-Session"  # in an answer: what the agent sends next time instead of its token
LEADERLESS_HEADER = "Trainmaster-Leaderless-Seconds"
"""In a refusal: the seconds since no operator led, as the one that refuses knows from the API server, or 0 if it does
not reach the API server and each leader waits until it has stopped answering so. It is missing if neither holds."""


class DirectiveState(str, Enum):
    """What an agent is to do."""

    WAIT = "wait"  # no round yet: stay joined
    HOLD = "hold"  # end all ranks of rounds below `round`, then stay joined
    RUN = "run"  # run `assignment`
    FINISH = "finish"  # the job is over: end everything and exit 0


class RankState(str, Enum):
    """What a rank does, as its agent sees it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"  # the kernel reports it as stopped (SIGSTOP, a debugger)
    EXITED = "exited"


@dataclass(frozen=True)
class Identity:
    """The pod that sends a message. The token of the pod is bound to `pod_uid`."""

    job_uid: str
    namespace: str
    job: str
    role: str
    slot: int
    incarnation: int
    pod_uid: str


@dataclass(frozen=True)
class StoreAddress:
    """The address of a TCP store or of an agent's server."""

    host: str
    port: int


@dataclass(frozen=True)
class Neighbour:
    """Another agent of the round, and the address at which it answers."""

    slot: int
    address: StoreAddress


@dataclass(frozen=True)
class Assignment:
    """The part that one agent has in a round. Its size does not depend on the world size."""

    round: int
    world_size: int
    first_rank: int
    ranks: int
    group_rank: int
    group_world_size: int
    store: StoreAddress
    restart_count: int
    resume: str = "Auto"  # Auto, Never, or the path of a checkpoint
    mesh: dict[str, int] = field(default_factory=dict)
    deadline_s: float = 0.0  # how long starting may take; 0: no limit
    minor: int = 0  # number of rounds since the last one that a leader published: those were opened by the grant
    grant: int = 0  # the highest minor that the agent of rank 0's pod may open while no leader answers
    keep: list[int] = field(default_factory=list)  # ranks that keep their process
    peers: list[StoreAddress] = field(default_factory=list)
    peer_secret: str = ""  # the secret by which agents of this round authenticate to each other
    micro_divisor: int = 1  # the micro-batch is this many times smaller, after the device ran out of memory
    skipped: list[list[int]] = field(default_factory=list)  # [first, end) positions of the data's order to leave out
    ring: Neighbour | None = None  # the next agent in the order of the round: this agent checks that it is alive
    first: Neighbour | None = None  # the agent of rank 0's pod, which opens rounds by the grant


@dataclass(frozen=True)
class Directive:
    """The answer to a join (long poll) and to a report.

    `tag` names the content. A join that sends the tag that the agent already obeys is answered only when the directive
    changes, or after the hold time.
    """

    epoch: int
    state: DirectiveState
    round: int
    tag: str
    protocol: int = PROTOCOL
    assignment: Assignment | None = None
    stop_at: int | None = None  # save and stop after this step...
    stop_bound: bool = False  # ...which every agent has put into its ranks' memory
    keep_store: bool = False  # keep a store open for the next round
    report_interval_s: float = 0.5
    unable: bool = False  # this leader can't persist what it decides: agents may use their grant
    ask_stacks: bool = False  # ranks may be stuck: report their stacks


@dataclass(frozen=True)
class JoinRequest:
    """A long poll for a directive. It is answered when the tag differs from `seen_tag`, or after the hold time."""

    identity: Identity
    protocol: int = PROTOCOL
    epoch: int = 0  # the highest leader epoch this agent has obeyed
    round: int = 0  # the round its ranks run, 0: none
    seen_tag: str = ""
    next_store: StoreAddress | None = None
    peer: StoreAddress | None = None  # where this agent answers other agents of its job
    facts: dict[str, Any] = field(default_factory=dict)
    software: dict[str, str] = field(
        default_factory=dict
    )  # software of its ranks, see `wire.software_differences`; empty: not known yet
    warming: bool = False  # ranks can't be started here yet: the process that they are forked from still imports


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint that a rank has completed, or one that has failed."""

    step: int
    round: int
    tier: str  # storage, ram, peer
    manifest_sha256: str = ""
    error: str = ""  # why this checkpoint failed; such a record is reported once and never chosen
    cascade: bool = False  # it failed only because another rank's part of the checkpoint was given up
    seconds: float = 0.0  # from the copy in memory to the manifest on storage; 0: not known


@dataclass(frozen=True)
class RankReport:
    """The state of one rank."""

    rank: int
    pid: int
    state: RankState
    phase: str = ""
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    tokens: int = 0
    silent_s: float = 0.0  # since the rank last said anything
    rss_bytes: int = 0
    device_bytes: int = 0
    exit_code: int | None = None  # negative: the signal
    step_seconds: float = 0.0  # a step's wall time, smoothed
    wait_seconds: float = 0.0  # the part of it spent waiting in collectives, smoothed
    stack: str = ""  # stack of its main thread, if asked for: most recent call last
    still_s: float = 0.0  # how long that stack has been the same, as far as it was looked at
    collective: str = ""  # the last of the whole world that it entered: "41 allreduce"
    rss_peak_bytes: int = 0  # the most that the process had so far
    device_peak_bytes: int = 0
    device_limit_bytes: int = 0  # what the device has
    mfu: float = 0.0  # model FLOPs utilization of the last step, 0 to 1; 0: not known


@dataclass(frozen=True)
class Verdict:
    """Why a rank ended, with its last output. `age_s` is how long ago it ended, on the agent's own clock."""

    rank: int
    cause: Cause
    round: int
    message: str
    exit_code: int | None = None
    signal: str = ""
    traceback: str = ""
    last_lines: list[str] = field(default_factory=list)
    step: int = 0
    age_s: float = 0.0
    cascade: bool = False  # this rank ended because a peer did
    on_device: bool = False  # with OutOfMemory: the device's memory is exhausted, not the host's
    samples: list[int] = field(default_factory=list)  # with Diverged: [first, end) positions of the step's samples
    recurs: Recurrence = Recurrence.UNKNOWN  # whether a restarted program would fail in the same way


@dataclass(frozen=True)
class Granted:
    """A round that was opened while no leader answered: its number, its store, and why the round before it ended.

    Here `verdict.age_s` is the time from the failure to the opening of the round.
    """

    round: int
    store: StoreAddress
    verdict: Verdict
    age_s: float = 0.0  # how long ago it was opened


@dataclass(frozen=True)
class Report:
    """What an agent knows. It is sent after each interval, and at once when a rank ends. The answer is a Directive."""

    identity: Identity
    round: int
    protocol: int = PROTOCOL
    minor: int = 0
    epoch: int = 0
    ranks: list[RankReport] = field(default_factory=list)
    verdict: Verdict | None = None  # the first failure of this round in this pod
    saved: bool = False  # all its ranks stopped on request after a checkpoint...
    saved_s: float = 0.0  # ...and this is the time from the end of the first rank's last step to the checkpoint
    nothing_saved: bool = False  # ...or all ended on request, and no checkpoint is known (a script, no storage)
    done: bool = False  # all its ranks ended with 0, and what they saved last is on storage
    next_store: StoreAddress | None = None
    store_lost: bool = False  # the store of this round was this agent's child, and it is gone
    inventory: list[CheckpointRecord] = field(default_factory=list)
    upload: UploadReport | None = None  # of the uploads without progress, the one that has waited longest
    stop_ack: int | None = None  # this stop_at lies in the memory of all its ranks...
    stop_passed: int | None = None  # ...or a rank had passed it: that rank's step
    resumed_step: int | None = None  # where this round's ranks resumed...
    resumed_tier: str = ""  # ...from: storage, ram, peer; the farthest that any rank needed
    memory_step: int = 0  # the newest of this round that all its ranks have saved to this pod's memory; 0: none
    last_save: int = 0  # the step after which a rank of a script last called torch.save; 0: after none
    saved_before: int = 0  # as last_save, of the round before this one: its last report may not have told it
    loaded: bool = False  # a script that counts its steps from 0 in each process loaded a file before the first
    clock: dict[str, float] = field(default_factory=dict)  # phase of this round's start -> seconds
    events: list[dict[str, str]] = field(default_factory=list)  # {"reason", "message"}: for people
    draining_s: float | None = None  # this pod was told to end and has that long
    neighbour_lost: int | None = None  # this slot, the next in the round's order, doesn't answer
    granted: list[Granted] = field(default_factory=list)  # rounds that this agent opened since a leader published one
    pauses: dict[str, list[float]] = field(default_factory=dict)  # phase -> [how many, typical, longest, total]
    trained: list[Trained] = field(default_factory=list)  # rounds since the last that a leader opened, oldest first
    container_bytes: int = 0  # what this pod's container takes, page cache that can go at once left out
    container_limit_bytes: int = 0  # 0: it has no limit
    usage: Usage | None = None  # usage of this pod since its agent began, in all rounds; None: an older agent
    warming: bool = False  # as in JoinRequest
    software: dict[str, str] = field(default_factory=dict)  # as in JoinRequest, until a leader has answered to it
