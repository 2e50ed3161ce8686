"""Muon: what its step is, which parameters it has, and what becomes of it in failures and in other layouts.

That it is the same step in each layout is in the parity table.
"""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from tests.trainer.test_layouts import LLAMA, MOE
from tests.trainer.test_ram import RamJob
from trainmaster import models
from trainmaster.contract.config import ModelConfig, OptimizerConfig, TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.errors import ConfigError
from trainmaster.optim import whole_matrices
from trainmaster.optim.muon import orthogonalized
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.optim.whole_matrices import Hop, on_wholes
from trainmaster.parallel import Plan
from trainmaster.rank.injected_faults import Fault, encode

MUON = {"name": "muon", "lr": 1e-2, "warmupSteps": 2}


class Net(nn.Module):
    plan = Plan(blocks="blocks")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(6, 9), nn.Linear(9, 6)])
        self.head = nn.Linear(6, 4)


def given(model: nn.Module, step: int) -> None:
    """Gradients of a step."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(12, 12), (7, 20), (20, 7), (3, 5, 8)], ids=str)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)], ids=["fp32", "bf16"])
def test_singular_vectors_stay_and_singular_values_become_about_one(
    shape: tuple[int, ...], dtype: torch.dtype, close: float
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    found = orthogonalized(x, dtype)
    assert found.dtype == x.dtype
    assert found.shape == x.shape
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    values = left.mT @ found @ right.mT
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    assert (values - torch.diag_embed(diagonal)).abs().max() < close
    assert diagonal.min() > 0.6
    assert diagonal.max() < 1.3


def test_nothing_stays_nothing() -> None:
    assert not orthogonalized(torch.zeros(4, 5), torch.float32).any()
    assert orthogonalized(torch.zeros(0, 4, 5), torch.float32).shape == (0, 4, 5)


def test_its_steps_are_those_of_torchs_muon_and_adamw() -> None:
    """In bf16, the only precision that torch's has: so alike, but not to the last bit."""
    ours, theirs = Net(), Net()
    config = OptimizerConfig(name="muon", lr=0.01, weightDecay=0.3)
    optimizer = ShardOptimizer(ours, config, "bf16")
    matrices = [block.weight for block in theirs.blocks]
    vectors = [block.bias for block in theirs.blocks]
    reference = [
        torch.optim.Muon(matrices, lr=0.01, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([theirs.head.weight], lr=0.01, betas=config.betas, weight_decay=0.3),
        torch.optim.AdamW([*vectors, theirs.head.bias], lr=0.01, betas=config.betas, weight_decay=0.0),
    ]
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    for step in range(4):
        given(ours, step)
        given(theirs, step)
        optimizer.step(0.01)
        for each in reference:
            each.step()
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        moved = (expected - before[name]).norm()
        assert (found - expected).norm() < 0.04 * moved, name


def test_matrices_of_blocks_have_momentum_and_all_else_is_adamws() -> None:
    model = models.build(ModelConfig(name="moe", options={**MOE["options"]}), 0)
    optimizer = ShardOptimizer(model, OptimizerConfig(name="muon"))
    given(model, 1)
    optimizer.step(0.1)
    kept = {
        name: {*optimizer.state[shard]}
        for (name, _), shard in zip(model.named_parameters(), optimizer.shards, strict=True)
    }
    of_muon = {name for name, state in kept.items() if state == {"momentum_buffer"}}
    assert {name for name, state in kept.items() if state == {"exp_avg", "exp_avg_sq", "step"}} == {*kept} - of_muon
    of_block = {"query", "key", "value", "out", "router", "gate", "up", "down"}
    assert {name.split(".")[0] for name in of_muon} == {"blocks"}
    assert {part for name in of_muon for part in name.split(".") if part in of_block} == of_block
    assert not [name for name in of_muon if "norm" in name]


def test_each_expert_of_a_stack_is_a_matrix_of_its_own() -> None:
    def moved(alone: bool) -> Tensor:
        model = models.build(ModelConfig(name="moe", options={**MOE["options"]}), 0)
        gate = model.get_parameter("blocks.0.mlp.experts.gate")
        before = gate.detach().clone()
        gate.grad = torch.randn(gate.shape, generator=torch.Generator().manual_seed(1))
        if alone:
            gate.grad[1:] = 0
        ShardOptimizer(model, OptimizerConfig(name="muon", weightDecay=0.0)).step(0.1)
        return gate.detach() - before

    assert torch.allclose(moved(alone=True)[0], moved(alone=False)[0], atol=1e-6)


@pytest.mark.parametrize("at", [1, 2])
def test_a_dropped_step_leaves_everything_as_it_was(at: int) -> None:
    def trained(dropped: bool) -> list[Tensor]:
        model = Net()
        optimizer = ShardOptimizer(model, OptimizerConfig(name="muon"), "fp16")
        for step in (1, 2, 3):
            if step == at and not dropped:
                continue
            given(model, step)
            if step == at:
                for parameter in model.parameters():
                    parameter.grad.fill_(float("nan"))
            optimizer.step(0.1, torch.tensor(float(step == at)))
        return [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False), strict=True))


class SimulatedGroup:
    """A group of threads instead of processes."""

    def __init__(self, size: int) -> None:
        self.sent: list[tuple[Tensor, ...]] = [()] * size
        self.together = threading.Barrier(size, timeout=5)

    def seen_by(self, rank: int) -> Any:
        return SimpleNamespace(rank=lambda: rank, whole=self)


def exchange_of_threads(x: Tensor, leaving: list[int], arriving: list[int], group: Any) -> Tensor:
    """`collectives.exchange_rows` between the threads of a `SimulatedGroup`."""
    whole, me = group.whole, group.rank()
    whole.sent[me] = x.split(leaving)
    whole.together.wait()
    received = torch.cat([parts[me] for parts in whole.sent])
    whole.together.wait()
    assert len(received) == sum(arriving)
    return received


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_matrices_in_four_parts_come_back_also_if_there_are_fewer_of_them_than_ranks(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Two shards of each of two halves: with one matrix, the ranks of the second shard put none together."""
    monkeypatch.setattr(whole_matrices, "exchange_rows", exchange_of_threads)
    wholes = [torch.arange(24.0).view(4, 6) + 100 * index for index in range(count)]
    shards, halves = [SimulatedGroup(2) for _ in range(2)], [SimulatedGroup(2) for _ in range(2)]

    def of_rank(shard: int, half: int) -> list[Tensor]:
        hops = [Hop(shards[half].seen_by(shard), 0, (2, 2)), Hop(halves[shard].seen_by(half), 1, (3, 3))]
        parts = [whole[2 * shard : 2 * shard + 2, 3 * half : 3 * half + 3] for whole in wholes]
        found = on_wholes(parts, hops, lambda whole: whole - whole[0, 0])
        return [part - first for part, first in zip(found, parts, strict=True)]

    with ThreadPoolExecutor(4) as pool:
        ranks = [pool.submit(of_rank, shard, half) for shard in range(2) for half in range(2)]
        for moved in (rank.result() for rank in ranks):
            assert [part.unique().tolist() for part in moved] == [[-100.0 * index] for index in range(count)]


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^optimizer.name: muon is for the matrices of blocks, and model Linear"):
        ShardOptimizer(nn.Linear(2, 2), OptimizerConfig(name="muon"))


def config(**fields: Any) -> dict[str, Any]:
    return {"data": {"path": "/data"}, "steps": 3, "batch": {"global": 8}, **fields}


def test_shards_in_host_memory_are_refused() -> None:
    sharding = {"dpShard": 2, "sharding": {"offload": True}}
    with pytest.raises(ValidationError, match=r"optimizer.name muon .* parallelism.sharding.offload .* use adamw"):
        TrainingConfig.model_validate(config(parallelism=sharding, optimizer={"name": "muon"}))


@pytest.mark.parametrize(
    ("optimizer", "momentum"),
    [({}, 0.9), ({"name": "sgd"}, 0.9), ({"name": "muon"}, 0.95), ({"name": "muon", "momentum": 0.9}, 0.9)],
    ids=str,
)
def test_momentum_is_written_as_a_number(optimizer: dict[str, Any], momentum: float) -> None:
    """As trainers of before know it."""
    found = TrainingConfig.model_validate(config(optimizer=optimizer)).model_dump(mode="json")["optimizer"]
    assert found["momentum"] == momentum
    assert OptimizerConfig.model_validate(found).momentum_or_default == momentum


@pytest.mark.processes
@pytest.mark.parametrize(
    ("model", "parallelism"),
    [(LLAMA, {"dpReplicate": 2}), (LLAMA, {"dpShard": 2}), (MOE, {"tp": 2})],
    ids=["replicate", "shard", "tensor"],
)
def test_a_killed_and_resumed_run_has_the_losses_and_the_state_of_an_uninterrupted_one(
    ranks: Ranks, tmp_path: Path, text: Path, model: dict[str, Any], parallelism: dict[str, Any]
) -> None:
    training = {"model": model, "parallelism": parallelism, "optimizer": MUON}
    whole = Job(ranks, tmp_path / "whole", text, **training)
    assert whole.round(1).codes == [0, 0]
    broken = Job(ranks, tmp_path / "broken", text, **training)
    socket = tmp_path / "faults"
    faults = {environment.FAULTS: encode([Fault("kill", step=5, rank=1)]), environment.FAULT_SOCKET: str(socket)}
    with fault_socket(socket):
        broken.round(1, env=faults, agent=True)
        second = broken.round(2, env=faults, agent=True)
    assert second.codes == [0, 0], second.output
    assert [m["step"] for m in second.said("resumed")] == [3, 3]
    assert broken.losses == whole.losses
    assert broken.final == {**whole.final, "round": 2}


@pytest.mark.processes
def test_survivors_complete_the_last_step_without_the_rank_that_had_a_part_of_each_matrix(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    """Rank 1 dies in step 5 before all gradients are summed: the others have step 4, whose updates needed it."""
    mesh = {"dpReplicate": 2, "dpShard": 2}
    whole = RamJob(ranks, tmp_path / "whole", text, parallelism=mesh, optimizer=MUON)
    whole.sound(1, 4)
    job = RamJob(ranks, tmp_path / "broken", text, parallelism=mesh, optimizer=MUON, every="100")
    job.broken(1, 4, Fault("kill", step=5, rank=1), asks=True)
    second = job.sound(2, 4)
    assert [m["step"] for m in second.said("resumed")] == [4] * 4
    assert job.losses == whole.losses
    assert job.final == {**whole.final, "round": 2}


@pytest.mark.processes
def test_a_run_goes_on_in_other_layouts_with_the_same_losses(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    training = {"model": LLAMA, "optimizer": MUON}
    whole = Job(ranks, tmp_path / "whole", text, **training)
    assert whole.round(1, world_size=1).codes == [0]
    moving = Job(ranks, tmp_path / "moving", text, **training)
    layouts = [(2, {"dpShard": 2}), (4, {"dpShard": 2, "tp": 2}), (2, {"pp": 2})]
    for number, (size, parallelism) in enumerate(layouts, start=1):
        moving.config["parallelism"] = parallelism
        outcome = moving.round(number, size, agent=True, stop_at=3 * number, stop_bound=1)
        last = number == len(layouts)
        assert outcome.codes == [0 if last else ExitCode.SAVED] * size, outcome.output
        assert {m["step"] for m in outcome.said("resumed")} == {3 * (number - 1)}
    assert list(moving.losses) == list(whole.losses)
    for step, loss in whole.losses.items():
        assert moving.losses[step] == pytest.approx(loss, rel=2e-6)


@pytest.mark.processes
def test_a_run_of_adamw_goes_on_with_muon(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, parallelism={"dpShard": 2})
    assert job.round(1).codes == [0, 0]
    for path in (job.output / "checkpoints").glob("step-*"):
        if int(path.name.split(".")[0].removeprefix("step-")) > 6:
            shutil.rmtree(path)
    job.config["optimizer"] = MUON
    outcome = job.round(2, agent=True)
    assert outcome.codes == [0, 0], outcome.output
    assert {m["step"] for m in outcome.said("resumed")} == {6}
    (newest,) = [path for path in (job.output / "checkpoints").glob("step-*") if "-9." in path.name.replace("0", "")]
    tensors = json.loads((newest / "manifest.json").read_text())["tensors"]
    assert "optimizer.state.model.blocks.0.mlp.up.weight.momentum_buffer" in tensors
    assert "optimizer.state.model.blocks.0.mlp.up.weight.exp_avg" not in tensors
    assert "optimizer.state.model.head.weight.exp_avg" in tensors
