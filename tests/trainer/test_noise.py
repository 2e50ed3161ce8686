"""The gradient noise scale: of gradients whose noise is known, and of real ranks beside one process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.trainer.job import Job, Undisturbed
from tests.trainer.ranks import Ranks
from trainmaster import data, models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.errors import ConfigError
from trainmaster.train.measures.gradient_noise_scale import DECAY, NoiseScale


def test_it_finds_the_noise_that_gradients_were_given() -> None:
    generator = torch.Generator().manual_seed(0)
    true, deviation = torch.full((1000,), 0.1), 2.0
    expected = 1000 * deviation**2 / true.square().sum().item()  # sequences
    noise = NoiseScale(small=16, large=256)
    for _ in range(200):
        # A step's batch has its first micro-batch in it.
        parts = torch.stack(
            [true + deviation / math.sqrt(16) * torch.randn(1000, generator=generator) for _ in range(16)]
        )
        noise.add(parts[0].square().sum().item(), parts.mean(0).square().sum().item())
    assert noise.value == pytest.approx(expected, rel=0.1)
    assert noise.words().startswith(
        f"gradient noise scale: about {noise.value:,.0f} sequences, and batch.global is 256"
    )


def test_what_makes_no_sense_is_not_told() -> None:
    noise = NoiseScale(2, 8)
    assert (noise.value, noise.words()) == (None, "")
    noise.add(math.inf, 1.0)
    assert noise.weight == 0
    noise.add(1.0, 2.0)  # less noise in the smaller batch: only chance
    assert (noise.value, noise.words()) == (None, "")


def by_hand(job: Job, small: list[range]) -> float:
    """After the first step, from one process. `small`: the samples of what is compared with the whole."""
    config = TrainingConfig.model_validate(job.config)
    source, total = data.build(config), config.batch.global_
    model = models.build(config.model, config.seed)

    def squared(slots: list[range]) -> float:
        model.zero_grad()
        for slot in slots:
            batch = source.batch(0, slot)
            parallel.cross_entropy(model(batch.inputs), batch.targets).backward()
        count = sum(map(len, slots)) * models.facts(config.model).context
        return sum((p.grad / count).square().sum().item() for p in model.parameters() if p.grad is not None)

    sequences = sum(map(len, small))
    of_small, of_all = squared(small), squared([range(total)])
    noise = (of_small - of_all) / (1 / sequences - 1 / total)
    return noise / ((total * of_all - sequences * of_small) / (total - sequences))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mesh", "ranks_", "small"),
    [
        ({}, 1, [range(2)]),
        ({"dpReplicate": 2}, 2, [range(2)]),
        ({"dpShard": 2}, 2, [range(2), range(4, 6)]),
        ({"dpShard": 4}, 4, [range(0, 1), range(2, 3), range(4, 5), range(6, 7)]),
        ({"tp": 2}, 2, [range(2)]),
        ({"cp": 2}, 2, [range(2)]),
    ],
    ids=str,
)
def test_it_is_in_each_layout_that_of_one_process(
    ranks: Ranks, tmp_path: Path, text: Path, mesh: dict[str, Any], ranks_: int, small: list[range]
) -> None:
    batch = {"global": 8, "micro": 2 if ranks_ < 4 else 1, "noiseScale": {"every": 1}}
    job = Job(ranks, tmp_path, text, steps=3, batch=batch, parallelism=mesh)
    done = job.round(1, ranks_)
    assert set(done.codes) == {0}, done.output
    assert job.metrics[0]["noise_scale"] == pytest.approx(by_hand(job, small), rel=1e-3)
    assert "gradient noise scale: about " in done.output


@pytest.mark.processes
def test_training_is_the_same_bits_and_a_resumed_run_goes_on_with_its_averages(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path
) -> None:
    plain = undisturbed()
    batch = {"global": 8, "micro": 2, "noiseScale": {"every": 2}}
    whole = Job(ranks, tmp_path / "whole", text, batch=batch)
    assert whole.round(1).codes == [0, 0]
    assert (whole.losses, whole.final["digest"]) == (plain.losses, plain.final["digest"])
    cut = Job(ranks, tmp_path / "cut", text, batch=batch)
    stopped = cut.round(1, agent=True, stop_at=5, stop_bound=1)
    assert stopped.codes == [ExitCode.SAVED] * 2, stopped.output
    assert cut.round(2).codes == [0, 0]
    told = [[line.get("noise_scale") for line in job.metrics] for job in (whole, cut)]
    assert told[0] == told[1]
    assert any(told[0])
    assert not any(told[0][0::2])


def test_where_no_rank_has_the_gradients_of_one_micro_batch_it_is_refused() -> None:
    def config(parallelism: dict[str, Any]) -> TrainingConfig:
        batch = {"global": 8, "micro": 2, "noiseScale": {"every": 2}}
        return TrainingConfig.model_validate(
            {"data": {"path": "/data"}, "steps": 3, "batch": batch, "parallelism": parallelism}
        )

    for parallelism, words in (
        ({"pp": 2}, "a pipeline never has the gradients of one micro-batch alone; use pp 1"),
        (
            {"dpShard": 2, "sharding": {"stage": 2}},
            "stage 2 the gradients can't be read before the last micro-batch; use stage 3",
        ),
        ({"island": 2}, "needs one batch that all ranks share, and each island has its own"),
    ):
        with pytest.raises(ValidationError, match=words):
            config(parallelism)


@pytest.mark.parametrize(
    ("degrees", "precision"),
    [({"dpReplicate": 2, "dpShard": 2}, "fp32"), ({"dpReplicate": 2, "dpShard": 1}, "bf16")],
)
def test_what_replicas_have_yet_to_sum_may_be_out_of_sight(degrees: dict[str, int], precision: str) -> None:
    batch = {"global": 8, "micro": 1, "noiseScale": {"every": 2}}
    fields = {"data": {"path": "/data"}, "steps": 3, "batch": batch, "precision": precision}
    with pytest.raises(ConfigError, match=r"^batch\.noiseScale: gradients of replicas of shards, or of replicas in "):
        NoiseScale.of(TrainingConfig.model_validate(fields), degrees, 1, 2)


@pytest.mark.processes
def test_with_one_micro_batch_there_is_nothing_to_compare(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, batch={"global": 8, "noiseScale": {"every": 2}})
    done = job.round(1)
    assert done.refused, done.codes
    assert "a rank has only one, of 4 of the 8 sequences; a smaller batch.micro would do" in done.output


def test_an_average_begins_at_what_came_first() -> None:
    noise = NoiseScale(2, 8)
    noise.add(3.0, 1.0)
    assert noise.signal == pytest.approx((1 - DECAY) * (8 - 6) / 6)
    other = NoiseScale(2, 8)
    other.load(noise.state())
    assert other.value == noise.value == pytest.approx((3 - 1) / (1 / 2 - 1 / 8) / ((8 - 6) / 6))
