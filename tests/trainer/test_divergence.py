"""What counts as diverged."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from trainmaster.contract.config import DivergenceConfig, TrainingConfig
from trainmaster.errors import Diverged
from trainmaster.rank.exception_verdict import verdict
from trainmaster.train.async_transfer import Reading
from trainmaster.train.measures.divergence import Divergence
from trainmaster.train.measures.gradient_noise_scale import NoiseScale
from trainmaster.train.step_in_flight import StepRecord
from trainmaster.train.step_numbers import StepNumbers


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf), (-math.inf, 1.0)])
def test_what_is_not_finite_has_diverged_without_any_rule(loss: float, norm: float) -> None:
    assert f"step 7: loss is {loss}, gradient norm is {norm}" in Divergence(DivergenceConfig()).finding(7, loss, norm)


def test_without_a_rule_a_loss_may_be_as_large_as_it_likes() -> None:
    divergence = Divergence(DivergenceConfig())
    assert not any(divergence.finding(step, 10.0**step, 1.0) for step in range(1, 200))
    assert divergence.losses() == []


def test_a_spike_is_told_from_noise_by_the_median_of_the_window() -> None:
    chance = random.Random(1)
    divergence = Divergence(DivergenceConfig(spikeFactor=3, window=16))
    assert not any(divergence.finding(step, chance.uniform(2, 4), 1.0) for step in range(1, 100))
    words = divergence.finding(100, 12.5, 1.0)
    assert "step 100: loss is 12.5, more than 3 times" in words
    assert "median of the 16 steps before" in words


def test_until_the_window_is_full_no_loss_is_a_spike() -> None:
    divergence = Divergence(DivergenceConfig(spikeFactor=2, window=4))
    assert [bool(divergence.finding(step, loss, 1.0)) for step, loss in enumerate([9, 1, 1, 1, 50, 1], 1)] == [
        *(False, False, False, False),
        *(True, False),
    ]


def test_gradients_that_spike_count_by_a_rule_of_their_own() -> None:
    divergence = Divergence(DivergenceConfig(normSpikeFactor=10, window=4))
    assert not any(divergence.finding(step, 100.0**step, 0.5) for step in range(1, 9))
    words = divergence.finding(9, 1.0, 5.1)
    assert words == (
        "step 9: gradient norm is 5.1, more than 10 times 0.5, the median of the 4 steps before (training.divergence)"
    )
    resumed = Divergence(DivergenceConfig(normSpikeFactor=10, window=4))
    resumed.resume(divergence.losses(), divergence.norms())
    assert resumed.finding(9, 1.0, 5.1) == words
    assert divergence.losses() == []


def numbers_of_fp16(config: DivergenceConfig, noise: NoiseScale | None = None) -> StepNumbers:
    training = TrainingConfig(data={"path": "/data"}, steps=100, batch={"global": 8}, divergence=config)
    unused: Any = None
    return StepNumbers(
        training, unused, unused, unused, unused, noise, sends=None, samples_of=lambda step: (step, step + 1)
    )


def record_of_fp16(step: int, norm: float, first: float = 0.0) -> StepRecord:
    numbers = [2.0, norm, 0.0, first, 2.0**16]  # loss, norm, steps to record, norm of the first micro-batch, loss scale
    return StepRecord(step, Reading(torch.tensor(numbers, dtype=torch.float64)), tokens=8, own_tokens=8, rate=0.1)


def test_steps_whose_gradients_are_dropped_in_fp16_have_no_norm_that_others_are_compared_with() -> None:
    numbers = numbers_of_fp16(DivergenceConfig(normSpikeFactor=10, window=4))
    for step, norm in enumerate([math.inf, math.inf, math.inf, 0.5, 0.6, 0.5, 0.4, 0.5], 1):
        numbers.check_sound(record_of_fp16(step, norm))
    assert numbers.divergence.norms() == [0.6, 0.5, 0.4, 0.5]
    with pytest.raises(Diverged, match=r"gradient norm is 6, more than 10 times 0.5"):
        numbers.check_sound(record_of_fp16(9, 6.0))


def test_norms_of_dropped_steps_in_a_checkpoint_of_an_earlier_release_are_left_out() -> None:
    divergence = Divergence(DivergenceConfig(normSpikeFactor=10, window=4))
    divergence.resume([], [0.0, 0.5, 0.0, 0.6])
    assert divergence.norms() == [0.5, 0.6]


def test_steps_whose_gradients_are_dropped_in_fp16_are_no_estimate_of_the_noise_scale() -> None:
    numbers = numbers_of_fp16(DivergenceConfig(), noise := NoiseScale(small=2, large=8))
    for step, norm in enumerate([math.inf, 1.0], 1):
        record = record_of_fp16(step, norm, first=0.4)
        numbers._noise_scale(record, record.numbers()[1])
        assert bool(noise.weight) == math.isfinite(norm)


def test_a_resumed_run_judges_as_an_uninterrupted_one() -> None:
    config = DivergenceConfig(spikeFactor=2, window=4)
    whole, resumed = Divergence(config), Divergence(config)
    for step, loss in enumerate([1.1, 1.3, 0.1 + 0.2, 1 / 3, 0.7], 1):
        whole.finding(step, loss, 1.0)
    resumed.resume(whole.losses())
    assert resumed.losses() == whole.losses()
    assert resumed.finding(6, 1.5, 1.0) == whole.finding(6, 1.5, 1.0) != ""


def test_the_last_words_of_a_step_that_diverged_name_its_samples() -> None:
    words, _ = verdict(Diverged("step 7: loss is nan", samples=(48, 56)), step=6)
    assert (words["cause"], words["samples"], words["step"]) == ("Diverged", [48, 56], 6)
