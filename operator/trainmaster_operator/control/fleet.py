"""The agents of all jobs as this leader knows them, kept in memory, without sockets and with an injected clock.

Agents send messages, the reconciler publishes directives. A directive is computed only from written status, so agents
are never told what is not written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainmaster.contract.wire import Directive, Identity, JoinRequest, Report, altered
from trainmaster_operator.control.agent_pacing import (
    CROWD,
    RECENT_S,
    is_urgent,
    news_delay_s,
    poll_hold_s,
    progress_delay_s,
    report_interval_s,
)
from trainmaster_operator.control.agent_state import SlotState
from trainmaster_operator.control.authentication import Admission, Authenticate, Claim, Credential
from trainmaster_operator.control.job_agents import JobFleet, incarnation_of, newest_checkpoint, newest_failure
from trainmaster_operator.control.job_usage_and_mfu import JobUsage
from trainmaster_operator.planning.facts.observation import AgentRecord, CheckpointSeen, SaveFailed

Key = tuple[str, str]  # (namespace, name) of the job.

COUNT_EVERY_S = 1.0
# Seconds for which the last answer to a pod that no longer exists is remembered; longer than the planner waits for the
# end of a pod.
ANSWERS_KEPT_S = 600.0
EVENT_CHARACTERS = 1024
MAX_EPOCH = 2**30  # A Lease counts its transitions in 32 bits, so a higher number is an error.


class Refused(Exception):
    """The answer to a message that cannot be served: an HTTP status, a sentence, and the seconds after which to try
    again."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s  # 0: the sender's own back-off decides.


class Monotonic(Protocol):
    """A clock that never jumps."""

    def monotonic(self) -> float: ...


@dataclass(frozen=True)
class FleetSettings:
    """Settings of the fleet. Times are in seconds."""

    # How long a join poll is held, more in a crowd. It is below recovery.agentLostSeconds, because a held poll is no
    # sign of life.
    hold_s: float = 8.0
    first_directive_s: float = 2.0  # How long a message waits for the first pass over its job.
    progress_s: float = 0.5  # Latest time after which a report without news queues its job.
    events: int = 50  # Maximum number of events per job that are kept for people.


class Fleet:
    """Serves the agents. `changed(key, delay_s)` asks for a pass over a job. `finds_job(key, uid)` returns
    whether there is a job with this uid, and raises Refused(503) while that is unknown.

    The sender of a message is authenticated before: `join` and `report` get the identity that it has proven.
    """

    def __init__(
        self,
        clock: Monotonic,
        authenticate: Authenticate,
        changed: Callable[[Key, float], None],
        finds_job: Callable[[Key, str], bool],
        settings: FleetSettings | None = None,
        on_decided: Callable[[float], None] | None = None,
        on_event: Callable[[Key, str, str], None] | None = None,
    ) -> None:
        self.settings = settings or FleetSettings()
        self._clock = clock
        self._authenticate = authenticate
        self._changed = changed
        self._finds_job = finds_job
        self._on_decided = on_decided
        self._on_event = on_event  # Called with what agents report to people: reason, message.
        self._jobs: dict[Key, JobFleet] = {}
        self._counted_at = float("-inf")
        self._recent = 0  # Number of agents of all jobs that were heard recently.

    # -- for agents

    async def admit(self, credential: Credential, claim: Claim) -> Admission:
        """Return who sent a request. Nothing about a job is revealed before. Raise Refused: 401, 403, 503."""
        return await self._authenticate(credential, claim)

    async def join(self, proven: Identity, request: JoinRequest) -> Directive:
        """Return the directive as soon as its tag differs from `seen_tag`, or the same directive when the hold time
        is over. Raise Refused."""
        key, job, slot = await self._enter(proven, request.identity)
        self._note_epoch(key, job, request.epoch)
        now = self._clock.monotonic()
        returns = not slot.joined(now)
        if slot.take_join(request, now) or returns:
            self._tell(key, job)
        slot.polls += 1
        try:
            directive = await self._held(job, slot, request.seen_tag)
            job.answered[proven.pod_uid] = self._clock.monotonic()
            return directive
        except asyncio.CancelledError:
            self._tell(key, job)  # The connection broke; perhaps the agent has ended too.
            raise
        finally:
            slot.polls -= 1
            slot.polled_at = self._clock.monotonic()

    async def report(self, proven: Identity, report: Report) -> Directive:
        """Record a report and return the present directive. Raise Refused."""
        key, job, slot = await self._enter(proven, report.identity)
        self._note_epoch(key, job, report.epoch)
        fenced = report.round < slot.round
        job.usage.take(proven.pod_uid, report)
        news = slot.take_report(report, self._clock.monotonic())
        if not fenced:
            known, job.checkpoint = job.checkpoint, newest_checkpoint(job.checkpoint, report.inventory)
            news = news or job.checkpoint != known  # All agents report it; the first report is news.
            job.failed_save = newest_failure(job.failed_save, report.inventory)
        for event in report.events:
            told = {name: event.get(name, "")[:EVENT_CHARACTERS] for name in ("reason", "message")}
            job.events.append((self._clock.monotonic(), {**told, "slot": report.identity.slot}))
            while len(job.events) > self.settings.events:
                job.events.popleft()
            if self._on_event:
                self._on_event(key, told["reason"], told["message"])
        for record in report.inventory:
            if record.error and not record.cascade and self._on_event:
                self._on_event(key, "CheckpointFailed", record.error[:EVENT_CHARACTERS])
        if news:
            self._tell(key, job, is_urgent(report, job.round))
        else:
            self._changed(key, max(self.settings.progress_s, progress_delay_s(len(job.slots))))
        return self._answer(job, report.identity.slot)

    # -- for the reconciler

    @property
    def report_interval_s(self) -> float:
        """Minimum number of seconds between two reports of each agent, so that all of them leave time for urgent
        messages."""
        return report_interval_s(self._crowd())

    def agents(self, key: Key, incarnations: Sequence[int]) -> dict[int, AgentRecord]:
        """Return the records of the current incarnations' agents, by slot."""
        job = self._jobs.get(key)
        if job is None:
            return {}
        now = self._clock.monotonic()
        records = {}
        for number, slot in sorted(job.slots.items()):
            if number < len(incarnations) and slot.identity.incarnation == incarnations[number]:
                decided = job.decided
                clock = {"decide": decided[1]} if decided and decided[0] == slot.round else {}
                records[number] = slot.record(now, clock)
        return records

    def unanswered_s(self, key: Key, pod_uid: str) -> float:
        """Return the seconds since this leader last answered a pod's agent with anything but the order to end;
        infinity if it never did."""
        job = self._jobs.get(key)
        return self._clock.monotonic() - job.answered.get(pod_uid, float("-inf")) if job else float("inf")

    def epoch(self, key: Key) -> int:
        """Return the highest leader epoch that an agent of this job reports to have obeyed."""
        job = self._jobs.get(key)
        return job.epoch if job else 0

    def checkpoint(self, key: Key) -> CheckpointSeen | None:
        """Return the newest checkpoint that agents of the job have reported, or None."""
        job = self._jobs.get(key)
        return job.checkpoint if job else None

    def failed_save(self, key: Key) -> SaveFailed | None:
        """Return the newest failed save that agents of the job have reported, or None."""
        return job.failed_save if (job := self._jobs.get(key)) else None

    def publish(
        self, key: Key, uid: str, round: int, incarnations: Sequence[int], directive_of: Callable[[int], Directive]
    ) -> None:
        """Replace the directives of a job and wake its agents. `directive_of` must depend on written status only."""
        job = self._job(key)
        if job.uid and job.uid != uid:
            self.forget(key)
            job = self._job(key)
        job.uid = uid
        if round > job.round:
            self._note_decision(job, round)
        job.round = round
        job.incarnations = incarnations
        job.directive_of = directive_of
        job.directives = {}
        job.published.set()
        for poll, (slot, tag) in job.polls.items():
            if not poll.done() and (self._is_stale(job, slot) or job.directive(slot).tag != tag):
                poll.set_result(None)
        for number in [n for n in job.slots if self._is_stale(job, n)]:
            del job.slots[number]
        if len(job.answered) > 2 * len(job.slots) + CROWD:
            since = self._clock.monotonic() - ANSWERS_KEPT_S
            job.answered = {pod_uid: at for pod_uid, at in job.answered.items() if at >= since}
        job.usage.keep({slot.identity.pod_uid for slot in job.slots.values()})

    def tell_unable(self, key: Key, unable: bool) -> None:
        """Set whether the API server accepts no decision on this job. This is no directive of its own: agents learn
        of it with the next answer."""
        job = self._jobs.get(key)
        if job is not None:
            job.unable = unable

    def forget(self, key: Key) -> None:
        """Forget a job that is gone. Open polls of its agents are answered with Refused(410)."""
        job = self._jobs.pop(key, None)
        if job is not None:
            job.directive_of = None
            job.published.set()
            for poll in job.polls:
                if not poll.done():
                    poll.set_result(None)

    # -- for people

    def reports(self, key: Key) -> list[Report]:
        """Return the newest report of each agent whose ranks run in the job's round."""
        job = self._jobs.get(key)
        if job is None:
            return []
        return [slot.report for slot in job.slots.values() if slot.report is not None and slot.round == job.round]

    def usage(self, key: Key) -> JobUsage:
        """Return what the job's pods have used since this leader first heard them."""
        return job.usage.total(self.reports(key)) if (job := self._jobs.get(key)) else JobUsage()

    def connected(self) -> int:
        """Return the number of agents that hold a join poll, or did just now."""
        now = self._clock.monotonic()
        return sum(slot.joined(now) for job in self._jobs.values() for slot in job.slots.values())

    def view(self, key: Key) -> dict[str, Any] | None:
        """Return what is known about the agents of a job as a JSON value; None if this leader knows nothing."""
        job = self._jobs.get(key)
        if job is None:
            return None
        now = self._clock.monotonic()
        return {
            "round": job.round,
            "slots": [
                {
                    "slot": number,
                    "incarnation": slot.identity.incarnation,
                    "heard_s": now - slot.heard_at,
                    "joined": slot.joined(now),
                    "round": slot.round,
                    "ranks": slot.report.ranks if slot.report else [],
                    "resumed_step": slot.report.resumed_step if slot.report else None,
                    "loaded": slot.report.loaded if slot.report else False,
                    "saved_before": slot.report.saved_before if slot.report else 0,
                    "container_bytes": slot.report.container_bytes if slot.report else 0,
                    "container_limit_bytes": slot.report.container_limit_bytes if slot.report else 0,
                }
                for number, slot in sorted(job.slots.items())
            ],
            "events": [{**event, "age_s": now - at} for at, event in job.events],
        }

    # -- inside

    async def _enter(self, proven: Identity, claimed: Identity) -> tuple[Key, JobFleet, SlotState]:
        """Return the key, the job and the slot of the sender. Raise Refused: 403 if it claims another identity, 410
        if it is fenced off, 503 for what is not known yet."""
        if claimed != proven:
            raise Refused(403, f"this token belongs to another pod than {claimed.pod_uid:.80} as {_place(claimed)}")
        self.refuse_gone(proven)
        key = (proven.namespace, proven.job)
        job = self._job(key)
        if job.directive_of is None:
            self._changed(key, 0.0)
            try:
                async with asyncio.timeout(self.settings.first_directive_s):
                    await job.published.wait()
            except TimeoutError:
                raise Refused(503, f"job {proven.job} has not been processed yet") from None
        if self._jobs.get(key) is not job:
            raise Refused(410, f"job {proven.namespace}/{proven.job} is gone")
        self._refuse_stale(job, proven)
        job.answered[proven.pod_uid] = self._clock.monotonic()  # Whatever else the answer says, the agent may continue.
        if proven.incarnation > incarnation_of(job, proven.slot):
            raise Refused(503, f"incarnation {proven.incarnation} of slot {proven.slot} is not known yet")
        slot = job.slots.get(proven.slot)
        if slot is None or slot.identity != proven:
            slot = job.slots[proven.slot] = SlotState(proven, self._clock.monotonic())
        return key, job, slot

    def refuse_gone(self, identity: Identity) -> None:
        """Raise Refused: 410 if this job, or this incarnation, is known to be over; 503 while the job may exist."""
        key = (identity.namespace, identity.job)
        if not self._finds_job(key, identity.job_uid):
            raise Refused(410, f"job {identity.namespace}/{identity.job} with uid {identity.job_uid} is gone")
        job = self._jobs.get(key)
        if job is not None:
            self._refuse_stale(job, identity)

    def _refuse_stale(self, job: JobFleet, identity: Identity) -> None:
        if job.directive_of is None:
            return
        if not job.incarnations:  # The status that this leader has read is older than the first pod.
            raise Refused(503, f"the pods of job {identity.namespace}/{identity.job} are not known yet")
        current = incarnation_of(job, identity.slot)
        if identity.incarnation < current or current < 0:
            raise Refused(410, f"incarnation {identity.incarnation} of slot {identity.slot} is stale")

    async def _held(self, job: JobFleet, slot: SlotState, seen_tag: str) -> Directive:
        number = slot.identity.slot
        if job.directive(number).tag != seen_tag:
            return self._answer(job, number)
        poll: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        job.polls[poll] = (number, seen_tag)
        try:
            async with asyncio.timeout(poll_hold_s(self.settings.hold_s, self._crowd(), number)):
                await poll
        except TimeoutError:
            pass
        finally:
            del job.polls[poll]
        if job.directive_of is None or job.slots.get(number) is not slot:
            raise Refused(410, f"incarnation {slot.identity.incarnation} of slot {number} is stale")
        return self._answer(job, number)

    def _crowd(self) -> int:
        """Return the number of agents that were heard recently, counted once per COUNT_EVERY_S seconds."""
        now = self._clock.monotonic()
        if now - self._counted_at >= COUNT_EVERY_S:
            self._counted_at = now
            slots = (slot for job in self._jobs.values() for slot in job.slots.values())
            self._recent = sum(now - slot.heard_at < RECENT_S for slot in slots)
        return self._recent

    def _answer(self, job: JobFleet, slot: int) -> Directive:
        directive = job.directive(slot)
        interval_s = max(directive.report_interval_s, self.report_interval_s)
        if directive.report_interval_s == interval_s and not job.unable:
            return directive
        # The tag stays the same, because this is no news.
        return altered(directive, report_interval_s=interval_s, unable=job.unable)

    def _tell(self, key: Key, job: JobFleet, urgent: bool = False) -> None:
        """Ask for a pass. A pass reads all agents of a job, so in a crowd the small news of one agent wait for those
        of others."""
        self._changed(key, 0.0 if urgent else news_delay_s(len(job.slots)))

    def _is_stale(self, job: JobFleet, slot: int) -> bool:
        known = job.slots.get(slot)
        return known is None or known.identity.incarnation < incarnation_of(job, slot) or slot >= len(job.incarnations)

    def _note_epoch(self, key: Key, job: JobFleet, epoch: int) -> None:
        if job.epoch < epoch <= MAX_EPOCH:
            job.epoch = epoch
            self._changed(key, 0.0)

    def _note_decision(self, job: JobFleet, round: int) -> None:
        received = [slot.verdict_at for slot in job.slots.values() if slot.verdict and slot.round == job.round]
        if received and job.round:
            seconds = self._clock.monotonic() - min(received)
            job.decided = (round, seconds)
            if self._on_decided:
                self._on_decided(seconds)

    def _job(self, key: Key) -> JobFleet:
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = JobFleet()
        return job


def _place(identity: Identity) -> str:
    return f"slot {identity.slot}, incarnation {identity.incarnation} of {identity.namespace:.80}/{identity.job:.80}"
