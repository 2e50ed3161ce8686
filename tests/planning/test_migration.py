"""Which stored jobs count as those of a former version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.former import former_status as of_a_former_version
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import former_spec, former_status
from trainmaster_operator.planning.status_mapping import write_status


@pytest.mark.parametrize(
    "status",
    [
        of_a_former_version("Running"),
        of_a_former_version("Suspended"),
        of_a_former_version("Succeeded"),
        {"incarnations": "0*2"},
        {"round": 0, "phase": "Pending"},
        {"goodput": "0.9"},
    ],
    ids=lambda status: str(status.get("phase", status))[:20],
)
def test_a_status_without_groups_is_a_former_one(status: dict[str, Any]) -> None:
    told = former_status(status)
    assert "An earlier version of Trainmaster wrote the status of this job" in told
    assert "the phase and the step in this status are no longer updated" in told
    assert "trainmaster migrate" in told


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        write_status(JobState()),
        write_status(JobState(round=3, incarnations="0", leaderEpoch=2, goodput="0.9", roundMap="0")),
        {"conditions": [{"type": "ReconcileError", "status": "True"}]},
    ],
    ids=["none", "empty", "new", "running", "one that was never read"],
)
def test_a_status_of_this_version_is_none(status: Any) -> None:
    assert former_status(status) == ""


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"training": {"parallelism": {"dp_shard": 2}}}, "spec.training.parallelism.dp_shard"),
        ({"training": {"checkpoint": {"every": 5}}}, "spec.training.checkpoint.every"),
        ({"recovery": {"hang": {"limitSeconds": None}}}, "spec.recovery.hang.limitSeconds"),
        ({"training": {"optimizer": {"schedule": "cosine"}}}, "spec.training.optimizer.schedule"),
        ({"scheduling": {"releaseSeconds": 0.5}}, "spec.scheduling.releaseSeconds"),
    ],
)
def test_a_spec_in_the_former_spelling_is_named(spec: dict[str, Any], field: str) -> None:
    assert f"({field})" in former_spec(spec)


def test_a_spec_of_this_version_is_none() -> None:
    options = {"model": {"options": {"dp_shard": 1, "waitSeconds": 0.5}}, "optimizer": {"schedule": "Cosine"}}
    assert former_spec({"training": options, "scheduling": {"releaseSeconds": 30.0}}) == ""
    assert former_spec(None) == ""
