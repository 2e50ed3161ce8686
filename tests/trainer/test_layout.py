"""Which layouts a model allows, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.contract.config import ParallelismConfig, TrainingConfig
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism


def config(parallelism: dict[str, Any], name: str = "llama", **options: Any) -> TrainingConfig:
    defaults = {"layers": 4, "heads": 4, "width": 64, "context": 64}
    return TrainingConfig.model_validate(
        {
            "model": {"name": name, "options": {**defaults, **options}},
            "data": {"path": "/data"},
            "steps": 10,
            "batch": {"global": 16},
            "parallelism": parallelism,
        }
    )


@pytest.mark.parametrize(
    "parallelism",
    [{}, {"tp": 4}, {"cp": 4}, {"pp": 4}, {"tp": 2, "cp": 2, "pp": 2}, {"cp": 2, "context": {"method": "Ulysses"}}],
)
def test_degrees_that_divide_the_model_are_allowed(parallelism: dict[str, Any]) -> None:
    allowed_parallelism.validate(config(parallelism))


@pytest.mark.parametrize(
    ("parallelism", "options", "sentence"),
    [
        ({"tp": 3}, {"context": 66}, "parallelism.tp: 3 doesn't divide the model's heads 4; 1, 2, 4 would"),
        ({"tp": 4}, {"kv_heads": 2}, "parallelism.tp: 4 doesn't divide the model's kv_heads 2; 1, 2 would"),
        ({"tp": 2}, {"vocabulary": 257}, "parallelism.tp: 2 doesn't divide the model's vocabulary 257; 1, 257 would"),
        (
            {"tp": 4, "cp": 2},
            {"context": 60},
            "parallelism.tp: 4 doesn't divide the 30 tokens that a rank has of each sequence (model.options.context 60 "
            "/ cp 2); 1, 2, 3, 5, 6, 10, 15, 30 would, or any with parallelism.tensor.sequence false",
        ),
        (
            {"cp": 3},
            {},
            "parallelism.cp: model.options.context 64 doesn't divide into 6 (2 chunks for each of cp 3 ranks); 60 and "
            "66 would",
        ),
        (
            {"cp": 3, "context": {"balance": "None"}},
            {},
            "parallelism.cp: model.options.context 64 doesn't divide into 3 (a chunk for each of cp 3 ranks); 63 and "
            "66 would",
        ),
        (
            {"cp": 4, "tp": 2, "context": {"method": "Ulysses"}},
            {},
            "parallelism.cp: 4 doesn't divide the 2 heads that a rank has, which Ulysses exchanges; 1, 2 would, or "
            "parallelism.context.method AllGather",
        ),
        (
            {"pp": 8},
            {},
            "parallelism.pp: 8 needs at least 8 layers, and model.options.layers is 4; at most 4 would do",
        ),
        (
            {"pp": 4, "pipeline": {"schedule": "ZBV"}},
            {},
            "parallelism.pp: 4 x 2 stages per rank needs at least 8 layers, and model.options.layers is 4; at most 2 "
            "would do",
        ),
        ({"dpShard": 2, "ep": 2}, {}, "parallelism.ep: model llama has no experts; only 1 would do"),
    ],
)
def test_degrees_that_do_not_divide_the_model_are_refused(
    parallelism: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        allowed_parallelism.validate(config(parallelism, **options))
    assert str(refused.value) == sentence


def test_experts_are_dealt_out_evenly() -> None:
    with pytest.raises(
        ConfigError, match=r"parallelism\.ep: 4 doesn't divide model.options.experts 6; 1, 2, 3, 6 would"
    ):
        allowed_parallelism.validate(config({"dpShard": 4, "ep": 4}, "moe", experts=6))


@pytest.mark.parametrize(
    ("parallelism", "world", "degrees"),
    [
        ({}, 4, {"dpReplicate": 4, "dpShard": 1}),
        ({"tp": 2}, 8, {"dpReplicate": 4, "dpShard": 1, "tp": 2}),
        ({"tp": 2, "dpReplicate": 2}, 8, {"dpReplicate": 2, "dpShard": 2, "tp": 2}),
        ({"pp": 2, "cp": 2, "tp": 2, "dpShard": 2}, 16, {"pp": 2, "dpReplicate": 1, "dpShard": 2, "cp": 2, "tp": 2}),
        ({"dpShard": 2, "cp": 2, "ep": 4}, 4, {"dpReplicate": 1, "dpShard": 2, "cp": 2, "ep": 4}),
    ],
)
def test_one_degree_is_derived(parallelism: dict[str, Any], world: int, degrees: dict[str, int]) -> None:
    assert ParallelismConfig.model_validate(parallelism).resolve(world) == degrees


@pytest.mark.parametrize(
    ("parallelism", "world", "sentence"),
    [
        (
            {"tp": 4},
            6,
            "tp 4 needs a multiple of 4 ranks. Use tp 1, 2 or 3, or 4 or 8 ranks. The job has 6 ranks",
        ),
        (
            {"tp": 2, "pp": 2},
            6,
            "pp 2 x tp 2 = 4 needs a multiple of 4 ranks. Use 4 or 8 ranks. The job has 6 ranks",
        ),
        (
            {"tp": 2, "dpShard": 3},
            8,
            "dpShard 3 x tp 2 = 6 needs a multiple of 6 ranks. Use 6 or 12 ranks. The job has 8 ranks",
        ),
        ({"dpShard": 3, "tp": 2}, 2, "dpShard 3 x tp 2 = 6 ranks, but the job has 2"),
        ({"dpShard": 3, "tp": 4}, 6, "dpShard 3 x tp 4 = 12 ranks, but the job has 6"),
        ({"dpReplicate": 2, "dpShard": 2, "pp": 2}, 4, "pp 2 x dpReplicate 2 x dpShard 2 = 8 ranks, but the job"),
        ({"dpReplicate": 1, "dpShard": 2}, 4, "dpReplicate 1 x dpShard 2 = 2 ranks, but the job has 4"),
        ({"island": 2, "dpReplicate": 3}, 4, "island 2 x dpReplicate 3 = 6 ranks, but the job has 4"),
        (
            {"dpShard": 3},
            2,
            "dpShard 3 needs a multiple of 3 ranks. Use dpShard 1 or 2, or 3 or 6 ranks. The job has 2 ranks",
        ),
        (
            {"dpShard": 3},
            1,
            "dpShard 3 needs a multiple of 3 ranks. Use dpShard 1, or 3 or 6 ranks. The job has 1 rank",
        ),
        (
            {"dpShard": 4, "ep": 3},
            4,
            "ep 3 doesn't divide dpShard x cp = 4, the number of ranks that share the experts; 1, 2, 4 would",
        ),
    ],
)
def test_a_world_that_does_not_divide_is_refused(parallelism: dict[str, Any], world: int, sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        ParallelismConfig.model_validate(parallelism).resolve(world)
    assert str(refused.value).startswith(sentence)


def test_only_what_is_given_is_serialized() -> None:
    """Trainers of older images refuse fields that they don't know."""
    assert ParallelismConfig().model_dump() == {"dpReplicate": None, "dpShard": None}
    assert ParallelismConfig(tp=2).model_dump() == {"dpReplicate": None, "dpShard": None, "tp": 2}


@pytest.mark.parametrize("options", ["pipeline", "tensor", "context"])
def test_options_of_an_axis_need_the_axis(options: str) -> None:
    with pytest.raises(ValueError, match=f"{options} configures axis .., but"):
        ParallelismConfig.model_validate({options: {}})


def test_a_batch_is_shared_by_data_parallel_ranks_alone() -> None:
    assert config({"tp": 4}).accumulation(8) == (8, 1)
    assert config({"cp": 2, "tp": 2}).accumulation(16) == (4, 1)


def test_a_pipeline_gets_enough_micro_batches() -> None:
    assert config({"pp": 2}).accumulation(2) == (4, 4)
    assert config({"pp": 4}).accumulation(4) == (2, 8)
    assert config({"pp": 4}).accumulation(8) == (1, 8)
    assert config({"pp": 4}).accumulation(16) == (1, 4)


def test_a_pipeline_with_too_few_micro_batches_is_refused() -> None:
    with pytest.raises(ValueError) as refused:
        config({"pp": 4}).accumulation(32)
    assert str(refused.value) == (
        "parallelism.pipeline: 1F1B over pp 4 needs at least 4 micro-batches, and batch.global 16 over 8 data-parallel "
        "ranks makes 2"
    )
    with pytest.raises(ValueError, match="Interleaved1F1B over pp 3 needs a multiple of 3 micro-batches"):
        config({"pp": 3, "pipeline": {"schedule": "Interleaved1F1B"}}).accumulation(3)
