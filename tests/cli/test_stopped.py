"""What a run that was stopped says last: how to go on, and from where."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from tests.cli.runs import status
from trainmaster_operator.api.job import DistributedTrainingJob
from trainmaster_operator.api.status import CheckpointStatus
from trainmaster_operator.cli.local import how_to_go_on


@pytest.mark.parametrize(
    ("base", "changes", "saved", "words"),
    [
        (TRAINMASTER, {}, 40, "To go on after step 40: CMD"),
        (TRAINMASTER, {}, 0, "Nothing was saved yet; from the first step again: CMD"),
        (
            TRAINMASTER,
            {"spec__checkpoint": {"resume": "Never"}},
            40,
            "From the first step again, since spec.checkpoint.resume is Never: CMD",
        ),
        (PYTORCH, {}, 0, "To start the script again, which goes on from what it has saved by itself: CMD"),
        (PYTORCH, {}, 40, "To go on after step 40: CMD"),
    ],
)
def test_a_run_that_was_stopped_says_how_to_go_on(
    base: dict[str, Any], changes: dict[str, Any], saved: int, words: str
) -> None:
    spec = DistributedTrainingJob.model_validate(job(base, **changes)).spec
    left = status(checkpoint=CheckpointStatus(step=saved, round=1)) if saved else status()
    assert how_to_go_on(spec, left, "CMD") == words
