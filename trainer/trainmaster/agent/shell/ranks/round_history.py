"""Remembers when rounds trained here until a leader knows it, because there may be no leader for minutes.

A leader's own round begins a new history. Only rounds that agents open by the grant are added to it. These are few, and
at most the newest KEPT are remembered. What a script saved last before its round ended may be in no report, so it is
reported in the next round. Ranks are told when the job first completed a step: an older file was not saved by the job's
training.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from trainmaster.contract.wire import environment
from trainmaster.contract.wire.training_times import KEPT, Trained

if TYPE_CHECKING:
    from trainmaster.agent.shell.ranks.round import Round
    from trainmaster.contract.wire import Assignment


class _Measured(NamedTuple):
    """A round with its two times on this machine's monotonic clock, in nanoseconds; 0: no step was completed."""

    trained: Trained
    first_step_ns: int
    last_sign_ns: int

    def build_record(self, now_ns: int) -> Trained:
        """Return the round with its two moments as ages, in seconds before `now_ns`."""
        return dataclasses.replace(
            self.trained,
            first_step_s=max(now_ns - self.first_step_ns, 0) / 1e9 if self.first_step_ns else None,
            last_sign_s=max(now_ns - self.last_sign_ns, 0) / 1e9,
        )


class RoundHistory:
    """The rounds that this agent reports, with the one that runs."""

    def __init__(self) -> None:
        self._ended: deque[_Measured] = deque(maxlen=KEPT - 1)
        self._before: Round | None = None
        self._whole: bool | None = None  # it begins with the job's first round
        self._first_step_at = 0.0  # seconds since 1970; 0: no rank here has completed a step
        self._first_stepped: int | None = None  # the round of that step

    def begin(self, assignment: Assignment, before: Round | None) -> None:
        """Note that a round begins and ends the round `before`, whose ranks still have their records."""
        if self._whole is None:
            self._whole = assignment.restart_count == 0
        if not assignment.minor:
            self._ended.clear()
        elif before is not None and before.ranks:
            self._ended.append(_measured(before))

    def retire(self, round: Round) -> None:
        """Note that a round is over here, and that its ranks are about to end."""
        self._before = round
        self._date_first_step(round)

    def environment(self) -> dict[str, str]:
        """Return what ranks are told of the rounds before: when the job first completed a step, if this agent was there
        from the job's first round on."""
        known = self._whole and self._first_step_at
        return {environment.FIRST_STEP_AT: f"{self._first_step_at:.3f}"} if known else {}

    def saved_before(self, number: int) -> int:
        """Return the step after which a rank last called torch.save in the round before `number`, as its process
        counted; 0: none did here, or this agent was not in that round."""
        before = self._before
        if before is None or before.number != number - 1:
            return 0
        return max((rank.progress().last_save for rank in before.ranks), default=0)

    def confirm(self, assignment: Assignment) -> None:
        """Forget the rounds before this one, because a leader has persisted them."""
        while self._ended and self._ended[0].trained.round < assignment.round:
            self._ended.popleft()

    def list_rounds(self, current: Round, now_ns: int) -> list[Trained]:
        """Return all rounds that are remembered and the one that runs; oldest first."""
        self._date_first_step(current)
        rounds = [*self._ended, _measured(current)] if current.ranks else [*self._ended]
        return [measured.build_record(now_ns) for measured in rounds]

    def _date_first_step(self, round: Round) -> None:
        """Date the job's first step by the clock of the day, by which files are dated too.

        That clock may be set while the round runs. The earliest date is right for files from before that and after it.
        """
        stepped = [p.first_step_ns for p in (rank.progress() for rank in round.ranks) if p.first_step_ns]
        if stepped and self._first_stepped in (None, round.number):
            at = time.time() - (time.monotonic_ns() - min(stepped)) / 1e9
            self._first_step_at = min(self._first_step_at or at, at)
            self._first_stepped = round.number


def _measured(round: Round) -> _Measured:
    records = [rank.progress() for rank in round.ranks]
    resumed = max(p.resumed_step for p in records)
    return _Measured(
        Trained(
            round=round.number,
            step=max(p.step for p in records),
            resumed_step=resumed if resumed >= 0 else None,
            resumed_tier=round.resumed_tier,
            saved_s=max(p.save_total_ns for p in records) / 1e9,
            evaluated_s=max(p.eval_total_ns for p in records) / 1e9,
        ),
        first_step_ns=min((p.first_step_ns for p in records if p.first_step_ns), default=0),
        last_sign_ns=max(p.beat_ns for p in records),
    )
