"""What must never be seen in a cluster, checked at every write: each broken promise is a violation."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.cluster import objects
from trainmaster_operator.cluster.port import ADDED, DELETED, EVENT, JOB, POD, Object, WatchEvent
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import former_status
from trainmaster_operator.planning.placement.replaced_pods import PATIENCE_S
from trainmaster_operator.planning.status_mapping import read_status

if TYPE_CHECKING:
    from simulation.virtual.virtual_ranks import SimRank
    from simulation.virtual.virtual_world import World

STORM_OF_WRITES = 5_000
STORM_IN_HOURS = 50_000  # where a job may wait so long: leaders renew their lease every two seconds
ENDS = ("Succeeded", "Failed")
RUNGS = ("inPlace", "pod", "full")

_NOTHING = re.compile(r"\bNone\b")
"""Python's word for a value that isn't there. No sentence for people has it."""

State = tuple[str, ...]


class Seen(NamedTuple):
    """What the last status of one job said that must not fall."""

    uid: str
    phase: str = ""
    round: int = 0
    slots: int = 0
    incarnations: tuple[int, ...] = ()  # Behind those of the slots: the last one of each slot that was given up.
    epoch: int = 0
    highest_step: int = 0
    checkpoint: tuple[int, int] = (0, 0)
    rungs: tuple[int, ...] = ()
    restarts: int = 0
    failures: int = 0  # Of the restarts, those that failures made: the others are a person's, or cost nothing.
    cause: str = ""
    size: int = 0


class Watch:
    """Sees each write as it takes effect, whoever made it."""

    def __init__(self, world: World) -> None:
        self.pairs: dict[tuple[State, State], None] = {}
        """Neighbouring states of a job: how much of what can follow what these schedules have seen."""
        self._world = world
        self._storm = STORM_OF_WRITES if world.workload.growth is None else STORM_IN_HOURS
        self._seen = Seen("")
        self._state: State = ()
        self._line = ""
        self._incidents = 0
        self._released = 0  # how often in a row the job gave its places back
        self._failed_rounds: set[tuple[int, int]] = set()  # (number, minor)
        self._charged: Counter[tuple[str, str]] = Counter()  # (rung, cause) since the job's step last rose
        self._charged_at = 0
        self._wishes: tuple[bool, int, int] = (False, 0, 0)
        self._ranks: dict[tuple[str, int, bool, int], SimRank] = {}
        self._came_late: dict[str, None] = {}  # uids of pods, see `_pod_created`
        self._on_lost_nodes: dict[str, None] = {}  # uids of pods whose node did not answer at some time

    # -- what happened to the job: each may be counted once

    def incident(self, count: int = 1) -> None:
        self._incidents += count

    def rank_failed(self, round: int, minor: int) -> None:
        """A round ends once, however many of its ranks fail."""
        if (round, minor) not in self._failed_rounds:
            self._failed_rounds.add((round, minor))
            self._incidents += 1

    # -- processes

    def rank_joined(self, rank: SimRank) -> None:
        """At most one process that lives is rank n of a round. A leader and the agents may each open one of a number;
        of the two, storage lets one in."""
        place = (rank.agent.identity.job_uid, rank.round, rank.agent.grant.minor > 0, rank.rank)
        other = self._ranks.get(place)
        if other is not None and other is not rank and other.alive:
            self._world.violation(
                f"{rank.agent.pod} and {other.agent.pod} both run rank {rank.rank} of round {rank.round}"
            )
        self._ranks[place] = rank

    # -- writes

    def changed(self, kind: str, event: WatchEvent) -> None:
        if kind == POD:
            self._pod_changed(event)
        elif kind == JOB:
            self._job_changed(event)
        elif kind == EVENT and _NOTHING.search(message := event.object.get("message", "")):
            self._world.violation(f"an event tells a person None: {message}")
        if self._world.store.version == self._storm:
            self._world.violation(f"{self._storm} writes: somebody writes without end")
            self._world.finished.set()

    def _pod_changed(self, event: WatchEvent) -> None:
        world, pod = self._world, event.object
        meta, phase = pod["metadata"], pod.get("status", {}).get("phase")
        ending = " deleting" if meta.get("deletionTimestamp") else ""
        world.note(f"pod {meta['name']} {event.type} {phase}{ending}")
        if _on_a_lost_node(pod):
            self._on_lost_nodes[meta["uid"]] = None
        if event.type == ADDED:
            self._pod_created(pod)
        world.kubelet.saw(event)

    def _pod_created(self, pod: Object) -> None:
        """None stands beside another one of its slot, unless one of the two comes from a request that was held back
        under way: whoever sent that may be dead, and whoever leads now does not know of it."""
        world = self._world
        if any(process.cluster.lands_late for process in world.processes):
            self._came_late[pod["metadata"]["uid"]] = None
            return
        place = _place(pod)
        for other in world.store.list(POD, world.namespace).items:
            if other is pod or _place(other) != place or other["metadata"]["uid"] in self._came_late:
                continue
            if not self._need_not_wait_for(other, pod):
                world.violation(f"pod {pod['metadata']['name']} was created beside {other['metadata']['name']}")

    def _need_not_wait_for(self, other: Object, pod: Object) -> bool:
        """Whether a pod may be created beside another one of its slot: one of an earlier job, one that has been
        ending for long and whose writes storage refuses, or one of a script that is ending on a lost node. That no
        rank steps beside those of a newer round is a promise of its own, see `World.stepped`."""
        if _of_an_earlier_job(other, pod):
            return True
        meta = other["metadata"]
        if not meta.get("deletionTimestamp"):
            return False
        if self._world.workload.script:
            return meta["uid"] in self._on_lost_nodes
        began = objects.seconds(meta["deletionTimestamp"]) - meta["deletionGracePeriodSeconds"]
        return bool(self._world.store.now() - began >= PATIENCE_S - 1.0)  # times of objects are whole seconds

    def _job_changed(self, event: WatchEvent) -> None:
        world, job = self._world, event.object
        if event.type == DELETED:
            world.note("the job is deleted")
            world.job_deleted()
            return
        if former_status(job.get("status")):
            return  # nothing is promised of it but that it is left alone
        uid, status, spec = job["metadata"]["uid"], read_status(job.get("status")), job["spec"]
        if uid != self._seen.uid:
            self._seen, self._state = Seen(uid), ()
            self._incidents, self._failed_rounds = 0, set()
            world.granted.clear()
            self._charged, self._charged_at = Counter(), 0
            self._wishes = _wishes(spec)
        elif self._wishes != _wishes(spec):
            # Each wish may take a restart that counts nothing; pods for a larger size may come in two parts.
            (was_suspended, size, restart), self._wishes = self._wishes, _wishes(spec)
            self._incidents += (spec["workers"]["replicas"] != size) * 2 + (was_suspended and not self._wishes[0])
            self._incidents += self._wishes[2] != restart
        seen = _read(uid, status)
        given_up = self._seen.incarnations[len(seen.incarnations) :]
        seen = seen._replace(incarnations=seen.incarnations + given_up)
        if seen.size < self._seen.size and seen.size < spec["workers"]["replicas"]:
            self._incidents += 1  # it has shrunk by itself, and the restart in which it grows again is no failure
        for words in self._broken(self._seen, seen):
            world.violation(words)
        for told in (c for c in status.conditions if _NOTHING.search(c.message)):
            world.violation(f"condition {told.type} tells a person None: {told.message}")
        for told in (c for c in status.conditions if not c.reason or not c.observedGeneration):
            world.violation(f"condition {told.type} has no reason, or does not say which generation of the job it saw")
        if seen.failures > self._seen.failures:
            self._charge(job, status)
        released = status.released.times if status.released is not None else 0
        if released > self._released and world.cluster is not None and _all_replaced(self._seen, seen):
            world.cluster.given_back()
        self._released = released
        self._seen = seen
        self._tell(job, status)
        if seen.phase in ENDS:
            world.job_ended()

    def _broken(self, old: Seen, new: Seen) -> list[str]:
        wrong = []
        granted = sum(old.round < number <= new.round for number in self._world.granted)
        if new.round < old.round:
            wrong.append(f"the round went back from {old.round} to {new.round}")
        for slot, (a, b) in enumerate(zip(old.incarnations, new.incarnations[: new.slots], strict=False)):
            if b < a:
                wrong.append(f"the incarnation of slot {slot} went back from {a} to {b}")
            elif b == a and slot >= old.slots:
                wrong.append(f"slot {slot} came back with incarnation {b}, which it has had")
        if new.epoch < old.epoch:
            wrong.append(f"a leader of epoch {new.epoch} wrote after one of epoch {old.epoch}")
        if new.highest_step < old.highest_step:
            wrong.append(f"the highest step went back from {old.highest_step} to {new.highest_step}")
        if new.checkpoint < old.checkpoint:
            wrong.append(f"the checkpoint went back from {old.checkpoint} to {new.checkpoint}")
        if any(b < a for a, b in zip(old.rungs, new.rungs, strict=False)):
            wrong.append(f"restarts went back from {old.rungs} to {new.rungs}")
        if old.phase in ENDS and new.phase != old.phase:
            wrong.append(f"the phase went back from {old.phase} to {new.phase}")
        if new.restarts > old.restarts + max(1, granted):
            wrong.append(f"one write counts {new.restarts - old.restarts} restarts")
        if new.restarts > self._incidents:
            wrong.append(f"{new.restarts} restarts are counted after {self._incidents} failures")
        if new.round > old.round + 1 + granted and new.cause != "Fenced":
            wrong.append(f"the round leapt from {old.round} to {new.round}")
        return wrong

    def _charge(self, job: Object, status: JobState) -> None:
        """One more restart after a failure has been counted: the budget must have allowed it."""
        limits, done = job["spec"]["recovery"]["budget"], status.restarts.model_dump()
        for rung in RUNGS:
            if done[rung] > limits[rung]:
                self._world.violation(f"{done[rung]} restarts of {rung} exceed the budget of {limits[rung]}")
        last = status.recoveries[-1] if status.recoveries else None
        if last is None or last.rung.value not in RUNGS or self._world.workload.script:
            return  # a script counts its steps anew in each process
        if last.step > self._charged_at:
            self._charged, self._charged_at = Counter(), last.step
        key = (last.rung.value, last.cause)
        self._charged[key] += 1
        if self._charged[key] > limits["perCause"]:
            self._world.violation(f"{self._charged[key]} restarts of {key} without progress exceed the budget")

    def _tell(self, job: Object, status: JobState) -> None:
        suspend = bool(job["spec"].get("suspend"))
        restarts = status.restarts.model_dump(exclude_defaults=True)
        line = (
            f"job {status.phase.value} round {status.round} store {status.roundStore or '-'} "
            f"slots {status.roundMap or '-'} pods {status.incarnations or '-'} restarts {restarts} "
            f"stop {status.stopAt}/{status.stopBound}{' suspend' if suspend else ''}"
        )
        if line == self._line:
            return
        self._world.note(line)
        self._line = line
        state = _state(job, status)
        if self._state and state != self._state:
            self.pairs[self._state, state] = None
        self._state = state


def _read(uid: str, status: JobState) -> Seen:
    checkpoint, failure = status.checkpoint, status.lastFailure
    incarnations = unpack_counts(status.incarnations)
    return Seen(
        uid,
        status.phase.value,
        status.round,
        len(incarnations),
        tuple(incarnations),
        status.leaderEpoch,
        status.progress.highestStep,
        (checkpoint.round, checkpoint.step) if checkpoint is not None else (0, 0),
        tuple(status.restarts.model_dump().values()),
        status.restarts.total + status.restarts.free,
        status.restarts.total,
        failure.cause if failure is not None else "",
        status.workers.replicas,
    )


def _all_replaced(old: Seen, new: Seen) -> bool:
    """Whether a new pod is wanted for every slot: the job gives all places back. Otherwise a node rejected single
    pods, and those alone wait."""
    return all(b > a for a, b in zip(old.incarnations, new.incarnations, strict=False))


def _wishes(spec: Object) -> tuple[bool, int, int]:
    return bool(spec.get("suspend")), spec["workers"]["replicas"], spec.get("restart", 0)


def _state(job: Object, status: JobState) -> State:
    """What of a job's status decides what may come next, without numbers that only grow."""
    last = status.recoveries[-1] if status.recoveries and status.recoveries[-1].totalSeconds is None else None
    size, wish = status.workers.replicas, job["spec"]["workers"]["replicas"]
    return (
        status.phase.value,
        "open" if status.roundStore else "forming" if status.round else "none",
        "bound" if status.stopBound else "asked" if status.stopAt is not None else "",
        f"{last.rung.value} {last.cause}" if last is not None else "",
        "smaller" if size < wish else "larger" if size > wish else "",
        "suspend" if job["spec"].get("suspend") else "",
        "released" if status.released else "",
        "suspected" if status.suspicion else "",
    )


def _place(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels["trainmaster.dev/role"], labels["trainmaster.dev/slot"]


def _on_a_lost_node(pod: Object) -> bool:
    """Whether the node controller says of a running pod that its node does not answer."""
    state = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions") or []}
    return state.get("ContainersReady") == "True" and state.get("Ready") == "Unknown"


def _of_an_earlier_job(other: Object, pod: Object) -> bool:
    owners = [p["metadata"]["ownerReferences"][0]["uid"] for p in (other, pod)]
    return bool(owners[0] != owners[1])
