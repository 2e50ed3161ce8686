"""The spelling of before: each field of it is refused by its new name, and rewritten to what is valid."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from trainmaster_operator.api.validation.job_validation import validate
from trainmaster_operator.cli.job_files.migrate_job import migrated

END = "trainmaster migrate rewrites the file"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"spec__training__parallelism": {"dp_replicate": 2, "dpShard": 2}},
            "spec.training.parallelism.dp_replicate: this field is called spec.training.parallelism.dpReplicate now",
        ),
        (
            {"spec__training__parallelism": {"dp_shard": 2}},
            "spec.training.parallelism.dp_shard: this field is called spec.training.parallelism.dpShard now",
        ),
        (
            {"spec__training__checkpoint": {"every": 5}},
            "spec.training.checkpoint: every, keep and keepBest are fields of spec.checkpoint now",
        ),
        (
            {"spec__training__optimizer": {"clipNorm": None}},
            "spec.training.optimizer.clipNorm: null has no meaning, because clients drop it; "
            "spec.training.optimizer.clipNorm: 0 says this now",
        ),
        (
            {"spec__recovery": {"hang": {"limitSeconds": None}}},
            "spec.recovery.hang.limitSeconds: null has no meaning, because clients drop it; "
            'spec.recovery.hang.mode: "Off" says this now',
        ),
        (
            {"spec__scheduling": {"releaseSeconds": None}},
            "spec.scheduling.releaseSeconds: null has no meaning, because clients drop it; "
            "spec.scheduling.releaseSeconds: 0 says this now",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_the_former_spelling_is_refused_in_one_sentence_that_names_the_new_one(
    changes: dict[str, Any], sentence: str
) -> None:
    document = job(**changes)
    assert [str(problem) for problem in validate(document)] == [f"{sentence}; {END}"]
    rewritten, made = migrated(document)
    assert validate(rewritten) == []
    assert made


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_a_schedule_in_lower_case_is_refused_and_rewritten(schedule: str) -> None:
    document = job(spec__training__optimizer={"schedule": schedule})
    (problem,) = validate(document)
    assert f"did you mean {schedule.capitalize()}?" in problem.message
    rewritten, _ = migrated(document)
    assert rewritten["spec"]["training"]["optimizer"] == {"schedule": schedule.capitalize()}


def test_a_manifest_of_before_is_rewritten_as_a_whole() -> None:
    old = job(
        spec__training__parallelism={"dp_replicate": 2, "dp_shard": 2},
        spec__training__checkpoint={"every": 5, "keep": 2},
        spec__checkpoint={"directory": "/checkpoints", "timeoutSeconds": 0.5},
        spec__recovery={"hang": {"limitSeconds": None}, "agentLostSeconds": 20.0},
    )
    before = copy.deepcopy(old)
    rewritten, changes = migrated(old)
    assert old == before
    assert rewritten["spec"] == {
        "workers": {"replicas": 4},
        "training": {**TRAINMASTER["spec"]["training"], "parallelism": {"dpReplicate": 2, "dpShard": 2}},
        "checkpoint": {"directory": "/checkpoints", "timeoutSeconds": 1, "every": 5, "keep": 2},
        "recovery": {"hang": {"mode": "Off"}, "agentLostSeconds": 20},
    }
    assert len(changes) == 7
    assert validate(rewritten) == []


def test_maps_of_others_are_left_as_they_are() -> None:
    options = {"pauseSeconds": 0.5}
    document = job(spec__training__model={"options": options})
    document["spec"]["workers"]["template"] = {"spec": {"containers": [{"name": "a"}], "someSeconds": 0.5}}
    assert migrated(document) == (document, [])


@pytest.mark.parametrize("document", [TRAINMASTER, PYTORCH], ids=["Trainmaster", "PyTorch"])
def test_a_manifest_of_now_is_not_changed(document: dict[str, Any]) -> None:
    assert migrated(document) == (document, [])
