"""MFU: what is counted, and as a part of what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainmaster import models
from trainmaster.contract.config import ModelConfig, TrainingConfig
from trainmaster.train.measures import mfu, step_log
from trainmaster.train.measures.mfu import Utilization, flops, peak
from trainmaster.train.measures.step_log import StepLog

LAYERS, WIDTH, TIME, VOCABULARY = 3, 64, 32, 256


def built(name: str, **options: Any) -> tuple[torch.nn.Module, ModelConfig]:
    config = ModelConfig(name=name, options=options)
    return models.build(config, seed=0), config


def test_a_gpt_takes_six_operations_per_weight_and_token_and_its_attention() -> None:
    model, config = built("gpt", layers=LAYERS, width=WIDTH, heads=4, context=TIME)
    matrices = LAYERS * 12 * WIDTH**2 + VOCABULARY * WIDTH
    attention = LAYERS * 12 * WIDTH * TIME  # a token's, of the whole square (PaLM, appendix B)
    assert flops(model, models.facts(config)) == (6 * matrices + attention) * TIME


def test_of_experts_those_count_that_a_token_visits() -> None:
    one, of_one = built("moe", layers=2, width=WIDTH, heads=4, context=TIME, experts=4, experts_per_token=1)
    two, of_two = built("moe", layers=2, width=WIDTH, heads=4, context=TIME, experts=4, experts_per_token=2)
    more, of_more = built("moe", layers=2, width=WIDTH, heads=4, context=TIME, experts=8, experts_per_token=1)
    count = flops(one, models.facts(of_one))
    assert count is not None
    router = 6 * 2 * 4 * WIDTH * TIME
    assert flops(more, models.facts(of_more)) == count + router
    visited = flops(two, models.facts(of_two))
    assert visited is not None
    assert visited > 1.2 * count


def test_images_count_too() -> None:
    width, size = 8, 16
    model, config = built("cnn", layers=1, width=width, groups=2, height=size, image_width=size)
    convolutions = 9 * (1 * width + width * width) * size * size
    assert flops(model, models.facts(config)) == 6 * (convolutions + width * 10)


@pytest.mark.parametrize(
    ("device", "precision", "matmul", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", "Highest", 989.5e12),
        ("NVIDIA H100 PCIe", "bf16", "Highest", 756.5e12),
        ("NVIDIA H200", "fp8", "Highest", 1979e12),
        ("NVIDIA H200", "fp32", "Highest", 67e12),
        ("NVIDIA H200", "fp32", "High", 494.7e12),
        ("NVIDIA A100-SXM4-80GB", "fp16", "Highest", 312e12),
        ("NVIDIA A10G", "bf16", "Highest", 70e12),
        ("NVIDIA A10", "bf16", "Highest", 125e12),
        ("Tesla T4", "fp32", "High", 8.1e12),
        ("NVIDIA L40S", "bf16", "Highest", 362e12),
        ("NVIDIA L4", "bf16", "Highest", 121e12),
        ("NVIDIA A100-SXM4-80GB", "fp8", "Highest", None),
        ("a device of tomorrow", "bf16", "Highest", None),
    ],
)
def test_what_a_device_could_reach(device: str, precision: str, matmul: str, expected: float | None) -> None:
    assert peak(device, precision, matmul) == expected


class Memory:
    total_memory = 140 * 2**30


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 35 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Memory)
    return torch.device("cuda", 0)


def of_gpt(device: torch.device, world_size: int = 4) -> Utilization | None:
    model, config = built("gpt", layers=LAYERS, width=WIDTH, heads=4, context=TIME)
    job = {"model": config.model_dump(), "data": {"path": "@stdlib"}, "steps": 20, "batch": {"global": 8}}
    training = TrainingConfig.model_validate({**job, "precision": "bf16"})
    return Utilization.of(model, models.facts(config), training, world_size, device)


def test_each_device_has_its_part_of_the_batch(h200: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mfu, "flops", lambda model, facts: 1e15)
    found = of_gpt(h200)
    assert found is not None
    assert found.numbers(seconds=4.0) == {"tflops": 500.0, "mfu": 0.5053}


def test_the_log_tells_it_of_the_steps_since_it_spoke_last(
    h200: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(step_log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(mfu, "flops", lambda model, facts: 1e15)
    log = StepLog(shown=True, total_steps=20)
    log.utilization = of_gpt(h200)
    for step in range(1, 12):
        log.step(step, 2.0, tokens=1000, seconds=8.0)
        now[0] += 4.0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "step 1 of 20: loss 2.0000, 125 tokens/s, 250.0 TFLOP/s a device (MFU 25.3%), at most 35.0 of its 140.0 GiB"
    )
    assert said[1].startswith("step 4 of 20: loss 2.0000, 250 tokens/s, 500.0 TFLOP/s a device (MFU 50.5%)")


def test_a_cpu_has_none() -> None:
    assert of_gpt(torch.device("cpu")) is None


def test_a_model_of_ones_own_has_none(h200: torch.device) -> None:
    model, _ = built("gpt", layers=LAYERS, width=WIDTH, heads=4, context=TIME)
    own = ModelConfig(name="some.module:function", options={"context": TIME})
    assert flops(model, models.facts(own)) is None
