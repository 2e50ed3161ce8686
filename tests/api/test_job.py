"""What a job's spec makes of what a person wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import PYTORCH, job
from trainmaster_operator.api.job_spec import DistributedTrainingJob, JobSpec
from trainmaster_operator.api.validation.job_validation import validate


def spec(document: dict[str, Any]) -> JobSpec:
    return DistributedTrainingJob.model_validate(document).spec


def told(document: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in validate(document)]


def test_ranks_read_one_config_with_the_jobs_block_for_checkpoints() -> None:
    evaluated = {"every": 5, "data": {"path": "/held-out"}}
    saved = {"every": 7, "keep": 2, "keepBest": True, "directory": "/checkpoints"}
    config = spec(job(spec__training__evaluation=evaluated, spec__checkpoint=saved)).training_config
    assert config is not None
    written = config.model_dump(mode="json")
    assert written["checkpoint"] == {"every": 7, "keep": 2, "keepBest": True}
    assert (written["steps"], written["batch"]["global"]) == (100, 8)
    assert type(config).model_validate(written).checkpoint == config.checkpoint


def test_a_script_has_no_config_of_our_trainer() -> None:
    assert spec(PYTORCH).training_config is None


def test_the_best_checkpoint_needs_evaluations() -> None:
    assert told(job(spec__checkpoint={"keepBest": True})) == [
        "spec.checkpoint.keepBest: the best checkpoint is known by its evaluation loss; training.evaluation is missing"
    ]


@pytest.mark.parametrize(("name", "value"), [("every", 7), ("keep", 2), ("keepBest", True)])
def test_how_often_a_script_saves_is_its_own_affair(name: str, value: object) -> None:
    assert told(job(PYTORCH, spec__checkpoint={name: value})) == [
        f"spec.checkpoint.{name}: a script saves its own checkpoints, when it decides to; leave it out"
    ]


@pytest.mark.parametrize("name", ["kueue", "a b/c", "/c", "a.b/"])
def test_a_controller_has_a_domain_in_front_of_its_name(name: str) -> None:
    assert told(job(spec__managedBy=name)) == [
        f"spec.managedBy: a controller's name with its domain, such as kueue.x-k8s.io/multikueue, is expected, "
        f"not '{name}'"
    ]
