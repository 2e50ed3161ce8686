"""Options that nothing would obey are refused in a sentence, unless they are at their defaults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import PYTORCH, job
from tests.api.unused_options import OF_DERIVED_DEGREES, ON_CLUSTERS, PLAIN, REFUSED, TAKEN, optimizer, parallelism
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.validation.job_validation import validate


def told(*, on_cluster: bool = False, **changes: Any) -> list[str]:
    return [str(problem) for problem in validate(job(**changes), on_cluster=on_cluster)]


@pytest.mark.parametrize(("changes", "sentence"), [*REFUSED, *OF_DERIVED_DEGREES], ids=str)
def test_an_option_that_changes_nothing_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    (problem,) = told(**changes)
    assert problem.startswith(sentence)


@pytest.mark.parametrize("changes", TAKEN, ids=str)
def test_an_option_that_is_obeyed_is_taken(changes: dict[str, Any]) -> None:
    assert told(on_cluster=True, **changes) == []


@pytest.mark.parametrize(("changes", "sentence"), ON_CLUSTERS, ids=str)
def test_how_to_save_is_refused_on_a_cluster_where_a_job_has_no_place_for_it(
    changes: dict[str, Any], sentence: str
) -> None:
    (problem,) = told(on_cluster=True, **changes)
    assert problem.startswith(sentence)
    assert told(**changes) == []


def test_a_script_without_storage_is_told_of_its_limit_and_of_its_memory_tier() -> None:
    checkpoint = {"timeoutSeconds": 60, "ram": {"every": 1}}
    problems = validate(job(PYTORCH, spec__checkpoint=checkpoint), on_cluster=True)
    assert [".".join(map(str, problem.path)) for problem in problems] == [
        "spec.checkpoint.ram",
        "spec.checkpoint.timeoutSeconds",
    ]


def test_an_elastic_job_may_have_options_of_a_size_that_it_can_grow_to() -> None:
    workers = {"replicas": 2, "min": 1, "max": 4}
    sharded = parallelism(dpReplicate=2, sharding={"stage": 2})
    assert told(spec__workers=workers, **sharded) == []
    (problem,) = told(spec__workers={**workers, "max": 2}, **sharded)
    assert "it configures shards" in problem


@pytest.mark.parametrize(
    "changes", [optimizer(name="sgd"), optimizer(schedule="Constant"), PLAIN, parallelism(dpShard=4)], ids=str
)
def test_defaults_that_an_api_server_writes_into_a_job_do_not_count_as_set(changes: dict[str, Any]) -> None:
    document = job(**{"spec__training__communication": {}, **changes})
    full = DistributedTrainingJob.model_validate(document).spec.model_dump(mode="json", by_alias=True)
    # Fields without a default stay absent there.
    stored = {**document, "spec": _without_nulls(full)}
    del stored["spec"]["training"]["optimizer"]["momentum"]
    assert [str(problem) for problem in validate(stored)] == []


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    return value
