"""Islands (local SGD, DiLoCo) with real ranks, beside the same algorithm written out in one process."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks
from tests.trainer.test_checkpoint import restore, save
from tests.trainer.test_ram import RamJob
from trainmaster import data, models, parallel
from trainmaster.checkpoint.files.checkpoint_manifest import read_manifest
from trainmaster.checkpoint.files.storage import open_storage
from trainmaster.checkpoint.state.load_tensors import load_tensors
from trainmaster.contract.config import OptimizerConfig, OuterConfig, TrainingConfig
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.optim.learning_rate import learning_rate
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.rank.injected_faults import Fault
from trainmaster.reduce.diloco_islands import Outer, fragments_of

EVERY = 3
LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "alone": (2, {"island": 2}),
    "replicas": (4, {"island": 2, "dpReplicate": 2}),
    "shards": (4, {"island": 2, "dpShard": 2}),
    "tensor": (4, {"island": 2, "tp": 2}),
    "context": (4, {"island": 2, "cp": 2}),
    "pipeline": (4, {"island": 2, "pp": 2}),
    "four": (4, {"island": 4}),
}


def islands(ranks: Ranks, output: Path, text: Path, mesh: dict[str, int], **training: Any) -> Job:
    outer = {"outer": {"every": EVERY}}
    return Job(ranks, output, text, **{"parallelism": mesh, "communication": outer, **training})


def by_hand(job: Job) -> tuple[dict[int, float], list[torch.Tensor]]:
    """(the losses, the parameters after the last step) of a job, one island after the other, with torch's own SGD."""
    config = TrainingConfig.model_validate(job.config)
    outer, count = config.outer, config.parallelism.island or 1
    assert outer is not None
    source, total = data.build(config), config.batch.global_
    worlds = [models.build(config.model, config.seed) for _ in range(count)]
    optimizers = [ShardOptimizer(world, config.optimizer) for world in worlds]
    common = [p.detach().clone() for p in worlds[0].parameters()]
    sgd = torch.optim.SGD(common, outer.lr, outer.momentum, nesterov=outer.nesterov and outer.momentum > 0)
    losses = {}
    for step in range(1, config.steps + 1):
        last = step == config.steps
        due = last or (step > 1 and (step - 1) % outer.every == 0)
        before = [[p.detach().clone() for p in world.parameters()] for world in worlds]
        consumed, share, loss = (step - 1) * total, total // count, 0.0
        for k, (world, optimizer) in enumerate(zip(worlds, optimizers, strict=True)):
            batch = source.batch(consumed, range(k * share, (k + 1) * share))
            tokens = source.valid_tokens(consumed + k * share, share)
            own = parallel.cross_entropy(world(batch.inputs), batch.targets) / tokens
            own.backward()
            torch.nn.utils.clip_grad_norm_(world.parameters(), config.optimizer.clipNorm or 1e9)
            optimizer.step(learning_rate(step, config.steps, config.optimizer))
            loss += own.item() * tokens / source.valid_tokens(consumed, total)
        losses[step] = loss
        if due:
            old = [p.clone() for p in common]
            for i, p in enumerate(common):
                p.grad = p - torch.stack([parts[i] for parts in before]).mean(0)
            sgd.step()
            with torch.no_grad():
                for world, parts in zip(worlds, before, strict=True):
                    for p, part, o, new in zip(world.parameters(), parts, old, common, strict=True):
                        p.copy_(new if last else p + (new - o) + (o - part))
    return losses, common


def newest(job: Job) -> tuple[Any, str, Any]:
    """(storage, directory, manifest) of the last checkpoint."""
    storage = open_storage(str(job.output / "checkpoints"))
    directory = max(job.checkpoints(), key=lambda name: int(name.split("-")[1].split(".")[0]))
    return storage, directory, read_manifest(storage, directory)


def tensors(job: Job, prefix: str) -> dict[str, torch.Tensor]:
    """Those of the last checkpoint whose names begin so, without that."""
    storage, directory, manifest = newest(job)
    found = {name: torch.zeros(t.shape) for name, t in manifest.tensors.items() if name.startswith(prefix)}
    load_tensors(storage, directory, manifest, found)
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


@pytest.mark.processes
@pytest.mark.parametrize("name", LAYOUTS)
def test_islands_of_any_layout_train_as_written_out_in_one_process(
    ranks: Ranks, tmp_path: Path, text: Path, name: str
) -> None:
    size, mesh = LAYOUTS[name]
    job = islands(ranks, tmp_path, text, mesh)
    outcome = job.round(1, size)
    assert outcome.codes == [0] * size, outcome.output
    losses, parameters = by_hand(job)
    assert job.losses == pytest.approx(losses, rel=1e-6)
    saved = tensors(job, "model.")
    assert len(saved) == len(parameters)
    model = models.build(TrainingConfig.model_validate(job.config).model, 0)
    for (key, start), right in zip(model.named_parameters(), parameters, strict=True):
        assert (saved[key] - right).norm() <= 1e-5 * (right - start).norm(), key
    for island in range(mesh["island"]):
        own = tensors(job, f"islands.{island}.model.")
        assert own.keys() == saved.keys()
        assert all(torch.equal(own[key], saved[key]) for key in own), "at the end all islands are alike"


@pytest.mark.processes
@pytest.mark.parametrize(
    "outer",
    [
        {"every": 1, "lr": 1.0, "momentum": 0.0},
        {"every": 4, "lr": 0.5, "nesterov": False},
        {"every": 100},
    ],
)
def test_the_outer_optimizer_is_sgd(ranks: Ranks, tmp_path: Path, text: Path, outer: dict[str, Any]) -> None:
    job = islands(ranks, tmp_path, text, {"island": 2}, communication={"outer": outer})
    assert job.round(1).codes == [0, 0]
    assert job.losses == pytest.approx(by_hand(job)[0], rel=1e-6)


@pytest.mark.processes
@pytest.mark.parametrize("mesh", [{"island": 2, "dpShard": 2}, {"island": 2, "dpReplicate": 2}])
def test_a_stopped_run_goes_on_with_the_same_bits(
    ranks: Ranks, tmp_path: Path, text: Path, mesh: dict[str, int]
) -> None:
    how = {"communication": {"outer": {"every": 4, "fragments": 2}}}
    whole = islands(ranks, tmp_path / "whole", text, mesh, **how)
    assert whole.round(1, 4).codes == [0] * 4
    parted = islands(ranks, tmp_path / "parted", text, mesh, **how)
    for number, stop in ((1, 4), (2, 6)):  # just before an exchange, and just after one
        assert parted.round(number, 4, agent=True, stop_at=stop, stop_bound=1).codes == [ExitCode.SAVED] * 4
    assert parted.round(3, 4, agent=True).codes == [0] * 4
    assert parted.losses == whole.losses
    assert parted.final == {**whole.final, "round": 3}


@pytest.mark.processes
def test_a_killed_rank_costs_no_completed_step(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    mesh, outer = {"island": 2, "dpShard": 2}, {"outer": {"every": 2}}
    whole = RamJob(ranks, tmp_path / "whole", text, parallelism=mesh, communication=outer)
    whole.sound(1, 4)
    job = RamJob(ranks, tmp_path / "broken", text, parallelism=mesh, communication=outer)
    job.broken(1, 4, Fault("kill", step=5, rank=3))
    assert [m["step"] for m in job.sound(2, 4).said("resumed")] == [4] * 4
    assert job.final == {**whole.final, "round": 2}
    assert job.losses == whole.losses


@pytest.mark.processes
def test_a_lost_island_rejoins_from_what_all_have_in_common(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    """Nothing of it is left anywhere: the others go on where they were."""
    job = RamJob(ranks, tmp_path, text, every="0", parallelism={"island": 2}, communication={"outer": {"every": EVERY}})
    first = job.broken(1, 2, Fault("kill", step=6, rank=1))
    assert [m["step"] for m in first.said("rescued")] == [5], first.output
    assert job.folder.names() == [(5, 1, 0)]
    second = job.sound(2, 2)
    assert [m["step"] for m in second.said("resumed")] == [5, 5]
    expected, _ = by_hand(job)
    assert {s: job.losses[s] for s in range(1, 6)} == {s: pytest.approx(expected[s], rel=1e-6) for s in range(1, 6)}
    # Half of the samples are seen by parameters that are three steps older, but not those of the beginning.
    assert expected[6] * 1.001 < job.losses[6] < job.losses[1]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "mesh"), [(3, {"island": 3}), (2, {}), (4, {"island": 2, "dpShard": 2}), (2, {"dpShard": 2})]
)
def test_other_islands_and_none_go_on_with_the_common_model(
    ranks: Ranks, tmp_path: Path, text: Path, size: int, mesh: dict[str, int]
) -> None:
    batch = {"batch": {"global": 12}}
    before = islands(ranks, tmp_path / "before", text, {"island": 2}, **batch)
    assert before.round(1, agent=True, stop_at=5, stop_bound=1).codes == [ExitCode.SAVED] * 2
    shutil.copytree(before.output / "checkpoints", tmp_path / "after" / "checkpoints")
    after = islands(ranks, tmp_path / "after", text, mesh, **batch)
    if "island" not in mesh:
        del after.config["communication"]
    outcome = after.round(2, size)
    assert outcome.codes == [0] * size, outcome.output
    saved = tensors(before, "model.")
    model = models.build(TrainingConfig.model_validate(after.config).model, 0)
    model.load_state_dict(saved)
    if "island" not in mesh:  # islands that are there have parameters of their own
        source = data.build(TrainingConfig.model_validate(after.config))
        loss = parallel.cross_entropy(model(source.batch(60, range(12)).inputs), source.batch(60, range(12)).targets)
        assert after.losses[6] == pytest.approx(loss.item() / source.valid_tokens(60, 12), rel=1e-6)
    steps = tensors(after, "optimizer." if "island" not in mesh else "islands.0.optimizer.")
    assert {int(t) for name, t in steps.items() if name.endswith(".step")} == {9}, "the optimizer came along"


@pytest.mark.processes
def test_a_run_without_islands_goes_on_with_some(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, parallelism={"dpReplicate": 2})
    assert job.round(1, agent=True, stop_at=5, stop_bound=1).codes == [ExitCode.SAVED] * 2
    assert islands(ranks, tmp_path, text, {"island": 2}).round(2).codes == [0, 0]
    steps = tensors(job, "islands.1.optimizer.")
    assert {int(t) for name, t in steps.items() if name.endswith(".step")} == {9}
    assert list(job.losses) == list(range(1, 10))


@pytest.mark.processes
def test_only_exchanges_send_anything_to_other_islands(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    def sent(name: str, **outer: Any) -> list[float]:
        job = islands(ranks, tmp_path / name, text, {"island": 2}, communication={"outer": {"every": 4, **outer}})
        assert job.round(1).codes == [0, 0]
        return [line["gradient_bytes"] / line["gradient_bytes_uncompressed"] for line in job.metrics]

    assert sent("whole") == [0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert sent("halves", send="bf16") == [0, 0, 0, 0, 0.5, 0, 0, 0, 0.5]
    parts = sent("parts", fragments=2)
    assert [share > 0 for share in parts] == [False, False, True, False, True, False, True, False, True]
    assert parts[2] + parts[4] == parts[8] == 1


@pytest.mark.processes
def test_evaluations_are_of_the_common_model(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    evaluation = {"every": 2, "data": {"path": str(text)}, "samples": 6}
    how = {"evaluation": evaluation, "communication": {"outer": {"every": 4}}}
    job = islands(ranks, tmp_path / "islands", text, {"island": 2}, **how)
    assert job.round(1).codes == [0, 0]
    found = {line["step"]: line["evaluation_loss"] for line in job.metrics if "evaluation_loss" in line}
    assert found[2] == found[4], "until islands exchange anything it is what they began with"
    assert found[6] != found[4]
    plain = islands(ranks, tmp_path / "plain", text, {"island": 2}, communication=how["communication"])
    assert plain.round(1).codes == [0, 0]
    assert {k: v for k, v in job.losses.items() if k in plain.losses} == plain.losses, "training is the same"


class Tied(nn.Module):
    """A model with a frozen parameter, and with one that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.frozen = nn.Linear(3, 3, bias=False).requires_grad_(False)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight


def test_the_common_model_has_what_is_frozen_and_what_modules_share(tmp_path: Path) -> None:
    def of_island(number: int) -> tuple[nn.Module, dict[str, Any]]:
        mesh: Any = SimpleNamespace(group=lambda axis: None, degree=lambda axis: 2)
        model = Tied()
        outer = Outer(model, mesh, OuterConfig(), steps=9)
        optimizer = ShardOptimizer(model, OptimizerConfig())
        own = {f"islands.{number}.model": model, f"islands.{number}.optimizer": optimizer}
        return model, {"model": outer.parameters, "outer.momentum": outer.momentum, **own}

    there, objects = of_island(0)
    storage, directory = save(tmp_path, objects)
    alone = Tied()
    restore(storage, directory, {"model": alone, "optimizer": ShardOptimizer(alone, OptimizerConfig())})
    of_another, others = of_island(5)
    restore(storage, directory, others)
    for model in (alone, of_another):
        assert model.state_dict().keys() == there.state_dict().keys()
        assert all(torch.equal(value, there.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(("count", "expected"), [(1, [4]), (2, [2, 2]), (4, [1, 1, 1, 1])])
def test_fragments_are_alike(count: int, expected: list[int]) -> None:
    assert [len(members) for members in fragments_of([10, 10, 10, 10], count)] == expected


def test_a_large_parameter_leaves_fewer_fragments() -> None:
    assert fragments_of([1, 100, 1], 3) == [[0], [1], [2]]
    assert fragments_of([100, 1], 4) == [[0], [1]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"communication": {"outer": {}}},
            "communication.outer configures islands, and there are none; set parallelism.island to 2 or more",
        ),
        (
            {"parallelism": {"island": 2}, "communication": {"compression": {"method": "bf16"}}},
            "communication.outer.send bf16 to halve what they send",
        ),
        ({"parallelism": {"island": 2}, "precision": "fp16"}, "use bf16 or fp32"),
        (
            {"parallelism": {"island": 2, "dpShard": 2, "sharding": {"offload": True}}},
            "leave one of them out",
        ),
        (
            {"parallelism": {"island": 2}, "communication": {"outer": {"every": 4, "fragments": 5}}},
            "fragments 5 is more than every 4, and each needs a step of its own; use at most 4",
        ),
    ],
)
def test_what_islands_cant_do_is_one_sentence(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainingConfig.model_validate({"data": {"path": "x"}, "steps": 4, "batch": {"global": 4}, **fields})


def test_a_number_of_ranks_that_islands_cant_share_is_refused() -> None:
    config = TrainingConfig.model_validate(
        {"data": {"path": "x"}, "steps": 4, "batch": {"global": 4}, "parallelism": {"island": 2}}
    )
    words = "^island 2 needs a multiple of 2 ranks. Use island 1, or 2 or 4 ranks. The job has 3 ranks$"
    with pytest.raises(ValueError, match=words):
        config.parallelism.resolve(3)
    assert config.parallelism.resolve(4) == {"island": 2, "dpReplicate": 2, "dpShard": 1}
    assert config.accumulation(4) == (1, 1)
