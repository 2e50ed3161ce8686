"""What is said of a run that has ended before its job, and what the run says that continues it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from tests.cli.runs import CRASH, status
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli.run.resume_message import from_where, what_failed_before
from trainmaster_operator.cli.stored_state import how_to_go_on
from trainmaster_operator.planning.facts.job_state import CheckpointStatus, JobPhase

SAME = "give the same command again: CMD"


@pytest.mark.parametrize(
    ("base", "changes", "saved", "words"),
    [
        (TRAINMASTER, {}, 40, f"To continue it after step 40, {SAME}"),
        (TRAINMASTER, {}, 0, f"Nothing was saved yet. To start it again from the first step, {SAME}"),
        (
            TRAINMASTER,
            {"spec__checkpoint": {"resume": "Never"}},
            40,
            f"To start it again from the first step, since spec.checkpoint.resume is Never, {SAME}",
        ),
        (PYTORCH, {}, 0, f"To start the script again, which continues from what it has saved itself, {SAME}"),
        (PYTORCH, {}, 40, f"To continue it after step 40, {SAME}"),
    ],
)
def test_a_run_that_was_stopped_says_how_to_go_on(
    base: dict[str, Any], changes: dict[str, Any], saved: int, words: str
) -> None:
    checkpoint = CheckpointStatus(step=saved, round=1) if saved else None
    left = status(JobPhase.SUSPENDED, checkpoint=checkpoint)
    assert how_to_go_on(job(base, **changes), left, "CMD") == words


def test_a_run_that_was_interrupted_does_not_say_that_nothing_was_saved() -> None:
    assert how_to_go_on(job(TRAINMASTER), status()) == (
        "To continue it from its newest checkpoint, or from the first step if there is none, "
        "give the same trainmaster run command again."
    )


@pytest.mark.parametrize(
    ("base", "changes", "saved", "words"),
    [
        (TRAINMASTER, {}, 40, "from the newest checkpoint; the last one that was reported is that of step 40"),
        (TRAINMASTER, {}, 0, "from the newest checkpoint, if there is one"),
        (
            TRAINMASTER,
            {"spec__checkpoint": {"resume": "Never"}},
            40,
            "from the first step, since spec.checkpoint.resume is Never",
        ),
        (PYTORCH, {}, 0, "the script starts again, and continues from what it has saved itself"),
    ],
)
def test_a_run_that_goes_on_tells_of_checkpoints_and_not_of_the_step_that_was_reached(
    base: dict[str, Any], changes: dict[str, Any], saved: int, words: str
) -> None:
    spec = DistributedTrainingJob.model_validate(job(base, **changes)).spec
    left = status(step=60, checkpoint=CheckpointStatus(step=saved, round=1) if saved else None)
    assert from_where(spec, left) == words


def test_a_script_that_has_called_torch_save_is_told_with_the_step_of_its_last_save() -> None:
    spec = DistributedTrainingJob.model_validate(job(PYTORCH)).spec
    left = status(step=60)
    left.progress.lastSave = 50
    saved = "continues from what it has saved itself (its last torch.save was after step 50)"
    assert from_where(spec, left) == f"the script starts again, and {saved}"
    assert how_to_go_on(job(PYTORCH), left, "CMD") == f"To start the script again, which {saved}, {SAME}"


def test_a_failed_run_that_is_run_again_says_what_failed_and_no_other_run_does() -> None:
    words = what_failed_before(status(phase=JobPhase.FAILED, lastFailure=CRASH))
    assert CRASH.message.splitlines()[0] in words
    assert words.endswith("this run may end in the same way")
    assert what_failed_before(status(phase=JobPhase.SUSPENDED, lastFailure=CRASH)) == ""
