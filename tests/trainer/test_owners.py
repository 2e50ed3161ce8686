"""Who has the memory of a rank that has run out of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster.contract.wire import environment
from trainmaster.rank import exception_verdict
from trainmaster.rank.injected_faults import encode, parse
from trainmaster.train.measures import memory_report


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 64), nn.Sigmoid(), nn.Linear(64, 8)) for _ in range(3)])
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().sum()


def test_activations_are_counted_by_parts_once_and_until_they_are_freed() -> None:
    model = Net()
    found = memory_report.Activations(model)
    rows = 5
    with found.counted():
        for _ in range(2):  # one micro-batch after the other: what is freed counts no more
            model(torch.randn(rows, 8)).backward()
    # Of a block: its input, and what the sigmoid gives, which the next product keeps too. Of the head: its input, and
    # what `square` keeps is made outside of it.
    assert found.most == {
        **{f"blocks.{i}": (8 + 64) * rows * 4 for i in range(3)},
        "head": 8 * rows * 4,
        "the loss": 8 * rows * 4,
    }
    assert not any(+found._now)
    with found.counted():
        losses = [model(torch.randn(rows, 8)) for _ in range(2)]
    assert found.most["blocks.1"] == 2 * (8 + 64) * rows * 4
    del losses
    assert not any(+found._now)


def test_gradients_are_the_same_while_activations_are_counted() -> None:
    model = Net()
    x = torch.randn(5, 8)
    model(x).backward()
    plain = [p.grad for p in model.parameters()]
    model.zero_grad()
    with memory_report.Activations(model).counted():
        model(x).backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(plain, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (102_300, "100 KiB"), (3 << 30, "3.0 GiB")]
)
def test_amounts(size: int, text: str) -> None:
    assert memory_report.amount(size) == text


def test_a_report_that_fails_does_not_hide_what_happened() -> None:
    def fails() -> str:
        raise ValueError("no")

    words, _ = exception_verdict.verdict(torch.OutOfMemoryError("CUDA out of memory."), 3, fails)
    assert words["message"] == (
        "OutOfMemoryError: CUDA out of memory. (who has the memory isn't known: ValueError: no)"
    )
    assert exception_verdict.verdict(RuntimeError("another"), 3, fails)[0]["message"] == "RuntimeError: another"


MESHES: dict[str, tuple[int, dict[str, Any]]] = {
    "replicate": (2, {"dpReplicate": 2}),
    "shard": (2, {"dpShard": 2}),
    "tensor": (2, {"tp": 2}),
    "pipeline": (2, {"pp": 2}),
}


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_a_rank_without_memory_names_the_largest_owners(ranks: Ranks, tmp_path: Path, text: Path, mesh: str) -> None:
    size, parallelism = MESHES[mesh]
    job = Job(ranks, tmp_path / "job", text, parallelism=parallelism)
    socket = tmp_path / "faults"
    faults = {
        environment.FAULTS: encode([parse("oom:rank=1,step=3,where=device")]),
        environment.FAULT_SOCKET: str(socket),
    }
    with fault_socket(socket):
        outcome = job.round(1, size, env=faults, agent=True)
    (words,) = [m for m in outcome.said("failed") if not m["cascade"]]
    assert words["cause"] == "OutOfMemory"
    message = words["message"]
    assert re.search(r"this process takes \d+ MiB", message), message
    for owner in ("parameters", "gradients", "optimizer state", "activations of a step"):
        assert re.search(rf"{owner} [\d.]+ [KM]iB", message), message
    activations = message.split("of the activations: ")[1]
    assert re.match(r"blocks\.\* [\d.]+ [KM]iB", activations), message
    assert f"trainmaster: {message}" in outcome.output
