"""What the end of a round waits for."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.agent.shell.ranks import old_rounds
from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.saves.last_saves import STOP_LIMIT_S, LastSaves
from trainmaster.agent.shell.saves.upload_queue import Lost, Uploads
from trainmaster.contract.wire import Assignment, StoreAddress

LOST = Lost(round=3, rank=1, step=20, error="No space left on device")


class FailingUploads:
    """One upload that has failed for `waited_s` when somebody asks, until it is given up."""

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s
        self.given_up = False
        self.limits: list[float] = []

    def left_s(self, limit_s: float, waited_s: float) -> float | None:
        self.limits.append(limit_s)
        return None if self.given_up else limit_s - self.waited_s

    def give_up(self) -> None:
        self.given_up = True

    def lost(self, round: int) -> Lost | None:
        return LOST if self.given_up and round == LOST.round else None


class EndedRound:
    def __init__(self, alive: bool = False) -> None:
        self.number, self.alive, self.ending, self.verdict = LOST.round, alive, False, None
        self.ended_ns = time.monotonic_ns()
        self.failure: tuple[Any, ...] = ()

    def exit_codes(self) -> list[int] | None:
        return None if self.alive else [0, 0]

    def unsaved(self, rank: int, step: int, error: str, *, fenced: bool) -> None:
        self.failure = (rank, step, error, fenced)


def looked_at(uploads: FailingUploads, round: EndedRound, *, stops: bool = False) -> EndedRound:
    async def look() -> None:
        saves = LastSaves(cast(Uploads, uploads), 900.0)
        saves.look(cast(Any, round), stops=stops)
        saves.close()

    asyncio.run(look())
    return round


def test_a_save_that_storage_does_not_take_within_the_limit_is_the_failure_of_the_round() -> None:
    assert looked_at(FailingUploads(899.0), EndedRound()).failure == ()
    assert looked_at(FailingUploads(900.0), EndedRound()).failure == (1, 20, "No space left on device", False)


def test_ranks_that_train_wait_for_nothing() -> None:
    uploads = FailingUploads(10_000.0)
    assert looked_at(uploads, EndedRound(alive=True)).failure == ()
    assert not uploads.given_up


def test_a_job_that_is_asked_to_stop_waits_for_less_long() -> None:
    uploads = FailingUploads(STOP_LIMIT_S)
    assert looked_at(uploads, EndedRound(), stops=True).failure
    assert uploads.limits == [STOP_LIMIT_S]


def test_a_process_that_outlives_its_kill_is_named_with_its_rank_and_its_state() -> None:
    ended = SimpleNamespace(number=0, ended=True, process=None)
    alive = SimpleNamespace(number=1, ended=False, process=SimpleNamespace(pid=os.getpid()))
    round = Round(Assignment(2, 2, 0, 2, 0, 1, StoreAddress("", 0), 1), 0, own_loop=True, changed=lambda: None)
    round.ranks = cast(Any, [ended, alive])
    (words,) = round.survivors()
    assert words.startswith(f"process {os.getpid()}, rank 1 of round 2, was killed and still exists (state R)")


def test_ranks_that_outlive_the_end_of_their_round_are_told_as_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_rounds, "UNKILLABLE_AFTER_S", 0.0)
    told: list[tuple[str, str]] = []

    async def retire() -> None:
        round = SimpleNamespace(alive=False, retire=lambda: None, close=lambda: None)
        round.survivors = lambda: ["process 7 still exists"]
        old_rounds.OldRounds(lambda reason, message: told.append((reason, message))).add(cast(Any, round))
        assert told == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(retire())
    assert told == [("ProcessUnkillable", "process 7 still exists")]
