"""What a pod's log says of training: enough to follow it, never a line per step."""

from __future__ import annotations

import pytest

from trainmaster.contract.sample_unit import unit_of
from trainmaster.train.measures import step_log
from trainmaster.train.measures.step_log import StepLog


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_log, "time", clock)
    return clock


def test_the_first_step_the_last_and_some_between_are_told(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = StepLog(shown=True, total_steps=25)
    for step in range(1, 26):
        log.step(step, 2.0 / step, tokens=1000, seconds=0.5)
        clock.now += 1.0
    assert capsys.readouterr().out.splitlines() == [
        "step 1 of 25: loss 2.0000, 2,000 tokens/s",
        "step 11 of 25: loss 0.1818, 1,000 tokens/s",
        "step 21 of 25: loss 0.0952, 1,000 tokens/s",
        "step 25 of 25: loss 0.0800, 1,000 tokens/s",
    ]


@pytest.mark.parametrize(
    ("tier", "words"), [("storage", "/checkpoints/step-7"), ("ram", "the ranks' own memory"), ("peer", "a peer's")]
)
def test_where_training_goes_on_is_told(
    clock: Clock, capsys: pytest.CaptureFixture[str], tier: str, words: str
) -> None:
    StepLog(shown=True, total_steps=25).resumed(7, "/checkpoints/step-7", tier)
    said = capsys.readouterr().out
    assert said.startswith("resumed after step 7 of 25, from ")
    assert words in said


def test_other_ranks_say_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = StepLog(shown=False, total_steps=1)
    log.resumed(1, "/checkpoints/step-1", "storage")
    log.step(1, 2.0, tokens=1000, seconds=0.5)
    assert capsys.readouterr().out == ""


def test_images_are_counted_as_images(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    StepLog(True, 1, unit_of("images")).step(1, 2.0, tokens=1000, seconds=0.5)
    assert capsys.readouterr().out == "step 1 of 1: loss 2.0000, 2,000 images/s\n"
    assert (unit_of("arrays"), unit_of("text")) == ("images", "tokens")
