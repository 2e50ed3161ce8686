"""What one agent has reported to this leader, combined into one record. It is kept in memory only: a restarted
operator hears everything again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from trainmaster.contract.wire import (
    Identity,
    JoinRequest,
    Report,
    StoreAddress,
    UploadReport,
    Verdict,
)
from trainmaster_operator.planning.facts.observation import AgentRecord

# Seconds for which an agent whose poll has ended still counts as joined, because it is about to poll again.
JOINED_FOR_S = 3.0


_NOTHING = Report(Identity("", "", "", "", 0, 0, ""), round=0)


@dataclass
class SlotState:
    """The agent of one slot. Times are those of this leader's monotonic clock."""

    identity: Identity
    heard_at: float
    round: int = 0
    _entered_at: float = 0.0  # The time at which this leader first heard of `round`.
    report: Report | None = None  # The newest report of `round`.
    _reported_at: float = 0.0
    parked: bool = False  # True if the agent has been in a round and last reported that no ranks run there.
    next_store: StoreAddress | None = None
    peer: StoreAddress | None = None
    verdict: Verdict | None = None  # The first verdict of `round`.
    verdict_at: float = 0.0  # The time at which this leader received it.
    polls: int = 0  # Number of open join polls.
    polled_at: float = float("-inf")  # The time at which the last one ended.
    facts: dict[str, Any] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    warming: bool = False
    _news: Hashable = None

    def joined(self, now: float) -> bool:
        """Return whether the agent holds a join poll, or ended one just before `now`."""
        return self.polls > 0 or now - self.polled_at < JOINED_FOR_S

    def take_join(self, request: JoinRequest, now: float) -> bool:
        """Record a join request. Return True if it contains something new."""
        self.heard_at = now
        if request.facts:
            self.facts = request.facts
        self.peer = request.peer
        told = self._take_pod(request)
        if 0 < request.round < self.round:
            return told
        news = self._enter(request.round, now) or told
        news = self._take_park(request.round) or news
        return self._take_offer(request.next_store) or news

    def take_report(self, report: Report, now: float) -> bool:
        """Record a report. Return True if it contains something new, not only progress. A report of an older round
        is ignored, but an agent that has ended its ranks may still have opened the store that the next round needs."""
        self.heard_at = now
        told = self._take_pod(report)
        if report.round < self.round:
            if report.round:
                return told
            news = self._take_park(0) or told
            return self._take_offer(report.next_store) or news
        news = self._enter(report.round, now) or told
        news = self._take_park(report.round) or news
        if report.verdict is not None and self.verdict is None and report.verdict.round == report.round:
            self.verdict = report.verdict
            self.verdict_at = now
        self.report, self._reported_at = report, now
        self.next_store = report.next_store
        now_known = _news(report)
        news = news or now_known != self._news
        self._news = now_known
        return news

    def record(self, now: float, clock: dict[str, float]) -> AgentRecord:
        """Return the record for the planner. `clock`: the operator's own share of the recovery clock of this slot's
        round."""
        report = self.report or _NOTHING
        return AgentRecord(
            slot=self.identity.slot,
            incarnation=self.identity.incarnation,
            pod_uid=self.identity.pod_uid,
            round=self.round,
            round_s=now - self._entered_at,
            parked=self.parked,
            minor=report.minor,
            granted=tuple(
                replace(granted, age_s=granted.age_s + now - self._reported_at) for granted in report.granted
            ),
            joined=self.joined(now),
            warming=self.warming,
            software=self.software,
            silent_s=now - self.heard_at,
            ranks=tuple(report.ranks),
            verdict=self.verdict,
            verdict_age_s=now - self.verdict_at + self.verdict.age_s if self.verdict else 0.0,
            done=report.done,
            saved=report.saved,
            saved_s=report.saved_s,
            nothing_saved=report.nothing_saved,
            upload=self._aged_upload(now),
            store_lost=report.store_lost,
            next_store=self.next_store,
            peer=self.peer,
            neighbour_lost=report.neighbour_lost,
            stop_ack=report.stop_ack,
            stop_passed=report.stop_passed,
            resumed_step=report.resumed_step,
            resumed_tier=report.resumed_tier,
            memory_step=report.memory_step,
            last_save=report.last_save,
            saved_before=report.saved_before,
            loaded=report.loaded,
            draining=report.draining_s is not None,
            clock={**report.clock, **clock},
            pauses=report.pauses,
            trained=tuple(report.trained),
            reported_s=now - self._reported_at,
        )

    def _aged_upload(self, now: float) -> UploadReport | None:
        """Return the upload that the newest report of the agent's round names, with its present age. An upload may
        last longer than its round, but not longer than its agent."""
        upload = self.report.upload if self.report is not None else None
        return upload and replace(upload, still_s=upload.still_s + now - self._reported_at)

    def _take_park(self, round: int) -> bool:
        parked = round == 0 and self.round > 0
        news = parked != self.parked
        self.parked = parked
        return news

    def _take_pod(self, message: JoinRequest | Report) -> bool:
        """Record what holds in every round of the pod. Return True if it is new."""
        software = _shared(tuple(message.software.items())) if message.software else self.software
        news = (message.warming, software) != (self.warming, self.software)
        self.warming, self.software = message.warming, software
        return news

    def _take_offer(self, store: StoreAddress | None) -> bool:
        news = store != self.next_store
        self.next_store = store
        return news

    def _enter(self, round: int, now: float) -> bool:
        if round <= self.round:
            return False
        self.round, self._entered_at = round, now
        self.report = None
        self.verdict = None
        self._news = None
        return True


@lru_cache(maxsize=256)
def _shared(software: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return one object for all pods with the same software, because each pass compares thousands of them."""
    return dict(software)


def _news(report: Report) -> Hashable:
    resumed = report.resumed_step or 0
    return (
        report.minor,
        len(report.granted),
        report.verdict is not None,
        report.saved,
        report.done,
        report.store_lost,
        report.next_store,
        report.stop_ack,
        report.stop_passed,
        report.resumed_step,
        report.draining_s is not None,
        report.neighbour_lost,
        report.upload is not None,
        tuple(sorted(report.clock)),
        tuple((rank.rank, rank.state, rank.exit_code, rank.step > resumed) for rank in report.ranks),
        tuple((record.round, record.step, record.tier, record.error) for record in report.inventory if record.error),
    )
