"""When a round that failed is one that never got going, which may be the zygote's fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell.ranks.round import START_S, failed_at_start
from trainmaster.contract.wire import Cause, Verdict


def failed(*, stepped: bool = False, lived_s: float = 0.5, **verdict: Any) -> Any:
    """A round with a verdict."""
    fields = {"rank": 0, "cause": Cause.CRASH, "round": 2, "message": "it broke", **verdict}
    return SimpleNamespace(stepped=stepped, lived_s=lived_s, verdict=Verdict(**fields))


@pytest.mark.parametrize(
    ("round", "shows_steps", "at_start"),
    [
        (failed(), True, True),
        (failed(), False, True),
        (failed(cause=Cause.HANG, lived_s=600), True, True),
        (failed(stepped=True), True, False),
        (failed(lived_s=START_S + 1), True, True),  # its steps would have been seen
        (failed(lived_s=START_S + 1), False, False),  # it takes none that are seen, and has run
        (failed(cascade=True), True, False),
        (failed(signal="SIGKILL"), True, False),
        (failed(cause=Cause.CONFIG_ERROR), True, False),
    ],
)
def test_only_a_round_that_broke_before_it_got_going_has_failed_at_its_start(
    round: Any, shows_steps: bool, at_start: bool
) -> None:
    assert failed_at_start(round, shows_steps=shows_steps) is at_start
