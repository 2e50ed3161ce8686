"""Options that nothing would obey are refused in a sentence, unless they are at their defaults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import job
from trainmaster_operator.api.job import DistributedTrainingJob
from trainmaster_operator.api.validation import validate

PLAIN = {"spec__training__parallelism": {"dp_replicate": 4}}
TRAINING = "spec.training"


def told(**changes: Any) -> list[str]:
    return [str(problem) for problem in validate(job(**changes))]


def optimizer(**fields: Any) -> dict[str, Any]:
    return {"spec__training__optimizer": fields}


def parallelism(**fields: Any) -> dict[str, Any]:
    return {"spec__training__parallelism": fields}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (optimizer(momentum=0.9), f"{TRAINING}.optimizer.momentum: adamw has betas and no momentum"),
        (optimizer(name="sgd", betas=[0.9, 0.99]), f"{TRAINING}.optimizer.betas: sgd has no such option"),
        (optimizer(name="sgd", eps=1e-6), f"{TRAINING}.optimizer.eps: sgd has no such option"),
        (
            optimizer(schedule="constant", minLrRatio=0.2),
            f"{TRAINING}.optimizer.minLrRatio: it says where the cosine ends, and schedule is constant",
        ),
        (
            {"spec__training__divergence": {"window": 50}},
            f"{TRAINING}.divergence.window: spikeFactor and normSpikeFactor look at it, and neither is given",
        ),
        (
            parallelism(pp=1, pipeline={"balance": "Parameters"}),
            f"{TRAINING}.parallelism.pipeline: it says how axis pp works, and pp is 1",
        ),
        (parallelism(tp=1, tensor={}), f"{TRAINING}.parallelism.tensor: it says how axis tp works, and tp is 1"),
        (parallelism(cp=1, context={}), f"{TRAINING}.parallelism.context: it says how axis cp works, and cp is 1"),
        (
            parallelism(tensor={"sequence": False}),
            f"{TRAINING}.parallelism: tensor says how axis tp works, but tp isn't given",
        ),
        (
            parallelism(sharding={"offload": True}),
            f"{TRAINING}.parallelism.sharding: it says how shards work, and dp_shard x cp is 1",
        ),
        (parallelism(dp_replicate=4, sharding={"stage": 2}), f"{TRAINING}.parallelism.sharding: it says how shards"),
        (
            parallelism(pp=2, dp_shard=2, sharding={"stage": 2}),
            f"{TRAINING}.parallelism.sharding.stage: a pipeline gathers parameters and sums gradients once",
        ),
        (
            {**PLAIN, "spec__training__communication": {"bucketMiB": 50, "compression": {"method": "bf16"}}},
            f"{TRAINING}.communication.bucketMiB: compression sends all gradients of a step at once; leave it out",
        ),
        (
            {**PLAIN, "spec__training__communication": {"bucketMiB": 50}, "spec__training__precision": "bf16"},
            f"{TRAINING}.communication.bucketMiB: gradients travel block by block with precision bf16; leave it out",
        ),
        (
            {**parallelism(dp_shard=4), "spec__training__communication": {"bucketMiB": 50}},
            f"{TRAINING}.communication.bucketMiB: gradients of replicas travel in buckets, and dp_replicate is 1",
        ),
        (
            {**parallelism(dp_shard=2), "spec__training__communication": {"bucketMiB": 50}},
            f"{TRAINING}.communication.bucketMiB: gradients of replicas that dp_shard, cp or tp take apart travel",
        ),
        (
            {**parallelism(dp_shard=4), "spec__training__communication": {"compression": {"method": "bf16"}}},
            f"{TRAINING}.communication.compression: it is of gradients that replicas sum, and dp_replicate is 1",
        ),
        (
            {"spec__checkpoint": {"ram": {"limit": "0", "every": 5}}},
            "spec.checkpoint.ram.every: nothing is kept in memory with limit 0",
        ),
        (
            {"spec__recovery": {"hang": {"limitSeconds": None, "mode": "Notify"}}},
            "spec.recovery.hang.mode: nothing is watched with limitSeconds null",
        ),
    ],
    ids=str,
)
def test_an_option_that_changes_nothing_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    (problem,) = told(**changes)
    assert problem.startswith(sentence)


@pytest.mark.parametrize(
    "changes",
    [
        optimizer(name="sgd", momentum=0.5),
        optimizer(name="muon", momentum=0.5, betas=[0.8, 0.9], eps=1e-6),
        optimizer(schedule="cosine", minLrRatio=0.5),
        {"spec__training__divergence": {"window": 50, "spikeFactor": 3}},
        parallelism(pp=2, pipeline={"balance": "Parameters"}),
        parallelism(cp=4, sharding={"stage": 2}),
        parallelism(dp_replicate=2, sharding={"stage": 2}),
        parallelism(pp=2, dp_shard=2, sharding={"offload": True}),
        {**PLAIN, "spec__training__communication": {"bucketMiB": 50}},
        {**parallelism(), "spec__training__communication": {"compression": {"method": "bf16"}}},
    ],
    ids=str,
)
def test_an_option_that_is_obeyed_is_taken(changes: dict[str, Any]) -> None:
    assert told(**changes) == []


def test_an_elastic_job_may_have_options_of_a_size_that_it_can_grow_to() -> None:
    workers = {"replicas": 2, "min": 1, "max": 4}
    sharded = parallelism(dp_replicate=2, sharding={"stage": 2})
    assert told(spec__workers=workers, **sharded) == []
    (problem,) = told(spec__workers={**workers, "max": 2}, **sharded)
    assert "it says how shards work" in problem


@pytest.mark.parametrize(
    "changes", [optimizer(name="sgd"), optimizer(schedule="constant"), PLAIN, parallelism(dp_shard=4)], ids=str
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
