"""When an agent may say that no leader answers."""

from __future__ import annotations

import pytest

from trainmaster.agent.shell import reports_to_operator
from trainmaster.agent.shell.reports_to_operator import Reporter

FAILED_AT = 100.0
SILENCE_S = 0.3


def reporter(
    now: float,
    monkeypatch: pytest.MonkeyPatch,
    sent_at: float | None = None,
    failed: tuple[float, bool] | None = None,
    answer_s: float = 0.01,
) -> Reporter:
    """With a report that was sent at `sent_at` and isn't answered, or with the last one that `failed`: (sent at, it was
    answered by somebody who doesn't lead)."""
    monkeypatch.setattr(reports_to_operator.time, "monotonic", lambda: now)
    made = object.__new__(Reporter)
    made._sent_at, made._failed, made._answer_s = sent_at, failed, answer_s
    return made


@pytest.mark.parametrize(
    ("now", "state", "silent"),
    [
        (100.0, {}, False),  # nothing was asked
        (100.2, {"sent_at": 100.0}, False),
        (100.31, {"sent_at": 100.0}, True),
        (100.2, {"sent_at": 99.0}, False),  # what was asked before says nothing of now...
        (100.31, {"sent_at": 99.0}, True),  # ...but for as long as it goes on
        (100.01, {"failed": (100.0, False)}, True),  # nobody is there
        (100.4, {"failed": (99.9, False)}, False),  # nobody was there, before
        (100.2, {"failed": (100.0, True)}, False),  # somebody is there who doesn't lead: perhaps a leader comes
        (100.31, {"failed": (100.0, True)}, True),
        (100.7, {"sent_at": 100.0, "answer_s": 0.2}, False),  # it is slow these days
        (101.01, {"sent_at": 100.0, "answer_s": 0.2}, True),
    ],
)
def test_silence(now: float, state: dict[str, float], silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reporter(now, monkeypatch, **state).unanswered(FAILED_AT, SILENCE_S) is silent  # type: ignore[arg-type]
