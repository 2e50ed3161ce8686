"""What a rank measures of itself."""

from __future__ import annotations

import random

import pytest

from trainmaster.contract.wire.progress_record import Phase, Progress
from trainmaster.host.step_timing import WARM_UP, Rhythm, merge_pauses

S = 1_000_000_000


class Rank:
    def __init__(self) -> None:
        self.progress = Progress(phase=Phase.STEP)
        self.rhythm = Rhythm()
        self.now = 0
        self.waited = 0
        self.enter(Phase.STEP)

    def enter(self, phase: Phase, after: float = 0.0) -> None:
        self.now += int(after * S)
        self.progress.phase = phase
        self._beat()

    def step(self, seconds: float, waited: float = 0.0) -> None:
        self.now += int(seconds * S)
        self.waited += int(waited * S)
        self.rhythm.stepped(self.progress, self.now, self.waited)
        self.enter(Phase.STEP)

    def _beat(self) -> None:
        self.rhythm.beat(self.progress, self.now)
        self.progress.beat_ns = self.now


def test_the_first_steps_of_a_process_are_not_told() -> None:
    rank = Rank()
    for _ in range(WARM_UP):
        rank.step(40.0)
    assert (rank.progress.step_pauses, rank.progress.step_ns) == (0, 0)
    rank.step(0.5)
    assert merge_pauses([rank.progress]) == {"step": [1, pytest.approx(0.5), pytest.approx(0.5), 0.0]}


def test_a_step_is_split_into_computing_and_waiting() -> None:
    rank = Rank()
    for _ in range(60):
        rank.step(1.0, waited=0.3)
    assert (rank.progress.step_ns / S, rank.progress.wait_ns / S) == (pytest.approx(1.0), pytest.approx(0.3))
    for _ in range(60):
        rank.step(2.0, waited=0.3)
    assert rank.progress.step_ns / S == pytest.approx(2.0, rel=0.01)


def test_saves_and_evaluations_are_told_apart_from_steps() -> None:
    rank = Rank()
    for n in range(1, 41):
        rank.step(1.0)
        if n % 10 == 0:
            rank.enter(Phase.SAVE)
            rank.enter(Phase.STEP, after=5.0 * n / 10)
    rank.enter(Phase.EVAL)
    rank.step(100.0)  # a script's evaluation ends with its next step
    numbers = merge_pauses([rank.progress])
    assert numbers["save"] == [4, pytest.approx(11.07, rel=0.01), 20.0, 50.0]
    assert numbers["step"][2] == pytest.approx(1.0)
    assert rank.progress.step_ns / S == pytest.approx(1.0)
    assert numbers["eval"] == [1, pytest.approx(100.0), 100.0, 100.0]


def test_the_longest_pause_is_forgotten_slowly_and_the_typical_one_is_robust() -> None:
    rank = Rank()
    chance = random.Random(1)
    for n in range(20_000):
        rank.step(60.0 if n == 100 else chance.uniform(0.9, 1.1))
        if n == 1000:
            early = merge_pauses([rank.progress])["step"]
    assert early[1] == pytest.approx(1.0, rel=0.1)
    assert 50 < early[2] <= 60
    late = merge_pauses([rank.progress])["step"]
    assert late[2] < 5
    assert late[0] == 10_000


def test_of_several_ranks_the_most_patient_numbers_are_told() -> None:
    quick, slow = Rank(), Rank()
    for _ in range(50):
        quick.step(1.0)
    for _ in range(20):
        slow.step(3.0)
    count, typical, longest, _ = merge_pauses([quick.progress, slow.progress, Progress()])["step"]
    assert (count, typical, longest) == (47, pytest.approx(1.0), pytest.approx(3.0))
