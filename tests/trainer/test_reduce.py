"""Gradients of which replicas send a part: what becomes of the rest, in failures and in other layouts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.trainer.job import Job, Undisturbed
from tests.trainer.process_groups import process_group
from tests.trainer.ranks import Ranks
from tests.trainer.test_ram import RamJob
from trainmaster.contract.config import CompressionConfig, TrainingConfig
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.parallel.mesh import Mesh
from trainmaster.rank.injected_faults import Fault
from trainmaster.reduce.compressed_reducer import Reducer
from trainmaster.reduce.compressed_size import of_sum, whole_parts

SCRIPT = """
import json, os
import torch
import torch.distributed as dist
from trainmaster.contract.config import CompressionConfig
from trainmaster.parallel.mesh import Mesh
from trainmaster.reduce.compressed_reducer import Reducer

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(24, 30)
        self.sometimes = torch.nn.Linear(3, 3)  # by rank 1 alone
        self.never = torch.nn.Linear(3, 3)

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = Net()
reducer = Reducer(model, Mesh({"dpReplicate": ranks}, "cpu"), CompressionConfig.model_validate_json(os.environ["HOW"]))

def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    for module in (model.used, model.sometimes):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
    if rank != 1:
        model.sometimes.weight.grad = model.sometimes.bias.grad = None

given, summed = 0.0, 0.0
relative = []
for step in range(int(os.environ["STEPS"])):
    gradients(seed=100 * step + rank)
    own = torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()])
    dist.all_reduce(own)
    reducer.reduce()
    reducer.completed()
    assert model.never.weight.grad is None and model.sometimes.weight.grad is not None
    found = torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()])
    others = [torch.empty_like(found) for _ in range(ranks)]
    dist.all_gather(others, found)
    assert all(torch.equal(other, found) for other in others), "replicas differ"
    given, summed = given + own, summed + found
    relative.append(((found - own).norm() / own.norm()).item())
left = torch.zeros_like(given)
if reducer.has_state:
    shards = reducer.checkpoint_shards().items()
    left = torch.cat([part.to_local().flatten() for name, part in shards if name.startswith("residual")])
dist.all_reduce(left)
if rank == 0:
    kept = ((summed + left - given).norm() / given.norm()).item()
    with open(os.environ["FOUND"], "w") as file:
        json.dump({"kept": kept, "relative": relative, "sent": reducer.sent}, file)
"""


def summed(ranks: Ranks, folder: Path, how: dict[str, Any], world_size: int = 3, steps: int = 4) -> dict[str, Any]:
    (folder / "script.py").write_text(SCRIPT)
    environment = {"FOUND": str(folder / "found"), "HOW": json.dumps(how), "STEPS": str(steps)}
    outcome = ranks.run(folder, world_size, environment, script=str(folder / "script.py"))
    assert outcome.codes == [0] * world_size, outcome.output
    found: dict[str, Any] = json.loads((folder / "found").read_text())
    return found


ELEMENTS = 24 * 30 + 30 + 2 * (9 + 3)
FLAGS = 6  # one for each parameter


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "error", "sent"),
    [
        ({"method": "fp16"}, 1e-3, of_sum(whole_parts(ELEMENTS + FLAGS, 3) * 2, 3)),
        ({"method": "bf16"}, 1e-2, of_sum(whole_parts(ELEMENTS + FLAGS, 3) * 2, 3)),
        ({"method": "TopK", "share": 1}, 1e-6, 2 * (2 * ELEMENTS + FLAGS) * 4),
        ({"method": "TopK", "share": 0.25}, 0.9, 2 * (2 * -(-ELEMENTS // 4) + FLAGS) * 4),
        ({"method": "PowerSGD", "rank": 2}, 0.95, of_sum((2 * 30 + 54 + FLAGS) * 4, 3) + of_sum(2 * 24 * 4, 3)),
    ],
    ids=str,
)
def test_what_is_not_sent_is_kept_and_bytes_are_as_reckoned(
    ranks: Ranks, tmp_path: Path, how: dict[str, Any], error: float, sent: int
) -> None:
    found = summed(ranks, tmp_path, how)
    assert found["relative"][0] < error
    if how["method"] in ("TopK", "PowerSGD"):
        assert found["kept"] < 1e-6
    assert found["sent"] == [sent, of_sum(ELEMENTS * 4, 3)]


class OneRank:
    """A wire of a group that has one rank."""

    ranks, sent = 1, 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gather(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: tensor.unsqueeze(0)


@pytest.mark.parametrize("alone", [False, True], ids=["with others", "alone"])
@pytest.mark.parametrize("how", [{"method": "TopK", "share": 0.25}, {"method": "PowerSGD", "rank": 1}], ids=str)
def test_what_is_kept_of_a_parameter_outlasts_a_step_in_which_no_rank_uses_it(how: dict[str, Any], alone: bool) -> None:
    model = torch.nn.ParameterDict({"often": torch.zeros(8, 8), "once": torch.zeros(8, 8)})
    with process_group():
        reducer = Reducer(model, Mesh({}, "cpu"), CompressionConfig.model_validate(how))
    reducer._wire = OneRank()  # type: ignore[assignment]
    given = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    sent = torch.zeros(8, 8)
    for step in range(3):
        model["often"].grad = given[step] / 10
        model["once"].grad = given[0].clone() if step == 0 else None
        reducer.reduce()
        reducer.completed()
        if step == 0:
            sent = model["once"].grad
            reducer._wire = None if alone else reducer._wire
    assert model["once"].grad is None
    assert reducer._kept is not None
    kept = reducer._kept[64:].view(8, 8)
    assert kept.norm() > 0.1
    torch.testing.assert_close(sent + kept, given[0])


@pytest.mark.parametrize("how", [{"method": "bf16"}, {"method": "TopK"}], ids=str)
def test_a_step_without_any_gradient_is_summed_to_none(how: dict[str, Any]) -> None:
    model = torch.nn.ParameterDict({"weight": torch.zeros(8, 8)})
    with process_group():
        reducer = Reducer(model, Mesh({}, "cpu"), CompressionConfig.model_validate(how))
    reducer.reduce()
    reducer.completed()
    assert model["weight"].grad is None


@pytest.mark.processes
def test_a_matrix_of_low_rank_is_found_by_powersgd_in_a_few_steps(ranks: Ranks, tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "torch.randn(parameter.shape, generator=generator)",
        "torch.outer(torch.arange(1.0, 1 + len(parameter)), torch.ones(parameter[0].numel())).view(parameter.shape)",
    )
    (tmp_path / "script.py").write_text(script)
    how = json.dumps({"method": "PowerSGD", "rank": 1})
    environment = {"FOUND": str(tmp_path / "found"), "HOW": how, "STEPS": "3"}
    assert ranks.run(tmp_path, 2, environment, script=str(tmp_path / "script.py")).codes == [0, 0]
    assert json.loads((tmp_path / "found").read_text())["relative"][-1] < 1e-5


def test_a_ring_sends_all_but_one_part_twice() -> None:
    assert [of_sum(1000, ranks) for ranks in (1, 2, 4)] == [0, 1000, 1500]


MESHES = {
    "TopK, replicate": (2, {"dpReplicate": 2}, {"method": "TopK", "share": 0.1}),
    "PowerSGD, hsdp": (4, {"dpReplicate": 2, "dpShard": 2}, {"method": "PowerSGD", "rank": 2}),
    "TopK, pipeline": (4, {"dpReplicate": 2, "pp": 2}, {"method": "TopK", "share": 0.1}),
    "PowerSGD, tensor": (4, {"dpReplicate": 2, "tp": 2}, {"method": "PowerSGD", "rank": 2}),
}


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_a_killed_run_goes_on_from_memory_and_from_storage_with_the_same_bits(
    ranks: Ranks, tmp_path: Path, text: Path, mesh: str
) -> None:
    size, parallelism, how = MESHES[mesh]
    training = {"parallelism": parallelism, "communication": {"compression": how}}
    whole = RamJob(ranks, tmp_path / "whole", text, **training)
    whole.sound(1, size)
    job = RamJob(ranks, tmp_path / "broken", text, **training, checkpoint={"every": 2, "keep": 3})
    job.broken(1, size, Fault("kill", step=4, rank=1))
    shutil.rmtree(job.memory)
    job.memory.mkdir()
    second = job.broken(2, size, Fault("kill", step=6, rank=0))
    assert [m["step"] for m in second.said("resumed")] == [2] * size, "from storage"
    third = job.sound(3, size)
    assert [m["step"] for m in third.said("resumed")] == [5] * size, "from memory"
    assert job.final == {**whole.final, "round": 3}
    assert job.losses == whole.losses


@pytest.mark.processes
def test_survivors_cannot_save_what_a_dead_rank_alone_had_kept(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    """Its parameters have a replica, but what it hadn't sent has none: so the newest step of all ranks counts."""
    training = {
        "parallelism": {"dpReplicate": 2},
        "communication": {"compression": {"method": "TopK"}},
        "checkpoint": {"every": 3, "keep": 3},
    }
    job = RamJob(ranks, tmp_path, text, every="0", **training)
    job.broken(1, 2, Fault("kill", step=6, rank=1))
    assert [m["step"] for m in job.sound(2, 2).said("resumed")] == [3, 3]


@pytest.mark.processes
def test_halves_keep_nothing_so_that_survivors_save_the_last_step(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    training = {
        "parallelism": {"dpReplicate": 2, "dpShard": 2},
        "communication": {"compression": {"method": "bf16"}},
    }
    job = RamJob(ranks, tmp_path, text, every="0", **training)
    job.broken(1, 4, Fault("kill", step=6, rank=1))
    assert [m["step"] for m in job.sound(2, 4).said("resumed")] == [5] * 4


@pytest.mark.processes
def test_the_first_steps_of_a_run_send_everything_also_after_a_resume(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path
) -> None:
    training = {
        "parallelism": {"dpReplicate": 2},
        "communication": {"compression": {"method": "PowerSGD", "warmupSteps": 5}},
    }
    whole, exact = undisturbed(2, **training), undisturbed(2, parallelism={"dpReplicate": 2})
    losses = [whole.losses[step] == pytest.approx(exact.losses[step], rel=1e-6) for step in range(1, 10)]
    assert losses == [True] * 6 + [False] * 3  # the sixth loss is of the sum of the fifth
    sent = [line["gradient_bytes"] < line["gradient_bytes_uncompressed"] for line in whole.metrics]
    assert sent == [False] * 5 + [True] * 4
    parted = Job(ranks, tmp_path, text, **training)
    for number, stop in ((1, 3), (2, 7)):
        assert parted.round(number, agent=True, stop_at=stop, stop_bound=1).codes == [ExitCode.SAVED] * 2
    assert parted.round(3, agent=True).codes == [0, 0]
    assert parted.losses == whole.losses
    assert parted.final == {**whole.final, "round": 3}


def residuals(job: Job) -> dict[str, torch.Tensor]:
    """Of the last checkpoint, summed over replicas."""
    from trainmaster.checkpoint.files.checkpoint_manifest import read_manifest
    from trainmaster.checkpoint.files.storage import open_storage
    from trainmaster.checkpoint.state.load_tensors import load_tensors

    storage = open_storage(str(job.output / "checkpoints"))
    directory = max(job.checkpoints(), key=lambda name: int(name.split("-")[1].split(".")[0]))
    manifest = read_manifest(storage, directory)
    names = [name for name in manifest.tensors if name.startswith("reducer.residual.")]
    targets = {name: torch.zeros(manifest.tensors[name].shape) for name in names}
    load_tensors(storage, directory, manifest, targets)
    return {name: tensor.sum(0) for name, tensor in targets.items()}


LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "alike": (3, {"dpReplicate": 3}),
    "grown": (4, {"dpReplicate": 4}),
    "shrunk": (2, {"dpReplicate": 2}),
    "alone": (1, {}),
    "sharded": (4, {"dpReplicate": 2, "dpShard": 2}),
    "pipeline": (4, {"dpReplicate": 2, "pp": 2}),
    "tensor": (4, {"dpReplicate": 2, "tp": 2}),
}


@pytest.mark.processes
def test_what_is_kept_comes_along_into_another_layout(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    """Of three replicas before. Then there is one step that sends all, so its gradients are the same in any layout."""

    def job(folder: Path, mesh: dict[str, int], share: float) -> Job:
        compression = {"compression": {"method": "TopK", "share": share}}
        return Job(ranks, folder, text, parallelism=mesh, batch={"global": 12}, communication=compression)

    before = job(tmp_path / "before", {"dpReplicate": 3}, 0.05)
    assert before.round(1, 3, agent=True, stop_at=6, stop_bound=1).codes == [ExitCode.SAVED] * 3
    assert all(tensor.norm() > 0 for name, tensor in residuals(before).items() if name.endswith("weight"))
    norms = {}
    for name, (size, mesh) in LAYOUTS.items():
        shutil.copytree(before.output / "checkpoints", tmp_path / name / "checkpoints")
        after = job(tmp_path / name, mesh, 1.0)
        outcome = after.round(2, size, agent=True, stop_at=7, stop_bound=1)
        assert outcome.codes == [ExitCode.SAVED] * size, (name, outcome.output)
        assert after.metrics[-1]["step"] == 7
        norms[name] = after.metrics[-1]["grad_norm"]
    fresh = job(tmp_path / "fresh", {"dpReplicate": 3}, 1.0)
    shutil.copytree(before.output / "checkpoints", tmp_path / "fresh" / "checkpoints")
    fresh.config.pop("communication")
    assert fresh.round(2, 3, agent=True, stop_at=7, stop_bound=1).codes == [ExitCode.SAVED] * 3
    assert norms == {name: pytest.approx(norms["alike"], rel=1e-5) for name in LAYOUTS}
    assert fresh.metrics[-1]["grad_norm"] != pytest.approx(norms["alike"], rel=1e-2), "what was kept makes a difference"


@pytest.mark.processes
def test_a_run_begins_to_compress_in_the_middle_and_ends_it_again(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    mesh = {"parallelism": {"dpReplicate": 2}}
    job = Job(ranks, tmp_path, text, **mesh)
    assert job.round(1, agent=True, stop_at=3, stop_bound=1).codes == [ExitCode.SAVED] * 2
    compressed = Job(ranks, tmp_path, text, **mesh, communication={"compression": {"method": "PowerSGD"}})
    assert compressed.round(2, agent=True, stop_at=6, stop_bound=1).codes == [ExitCode.SAVED] * 2
    assert job.round(3, agent=True).codes == [0, 0]
    lines = {line["step"]: line for line in job.metrics}
    assert "gradient_bytes" not in lines[2]
    assert 0 < lines[5]["gradient_bytes"] < lines[5]["gradient_bytes_uncompressed"]


def config(**fields: Any) -> dict[str, Any]:
    return {"data": {"path": "x"}, "steps": 1, "batch": {"global": 1}, **fields}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"communication": {"compression": {"method": "TopK"}}, "parallelism": {"dpReplicate": 1, "dpShard": 4}},
            "communication.compression .* with parallelism.dpReplicate 1 there are no replicas; set it to 2 or more",
        ),
        (
            {"communication": {"compression": {"method": "TopK"}}, "parallelism": {"sharding": {"offload": True}}},
            "parallelism.sharding.offload moves gradients to host memory",
        ),
        (
            {"communication": {"compression": {"method": "PowerSGD"}}, "precision": "fp16"},
            "use precision bf16 or fp32, or method fp16 or bf16",
        ),
        ({"communication": {"compression": {"method": "TopK", "rank": 2}}}, "rank is an option of PowerSGD"),
        ({"communication": {"compression": {"method": "fp16", "share": 0.1}}}, "share is an option of TopK"),
        ({"communication": {"compression": {"method": "TopK", "share": 0}}}, "greater than 0"),
        (
            {"communication": {"compression": {"method": "bf16", "warmupSteps": 2}}},
            "warmupSteps is an option of PowerSGD and TopK, but method is bf16",
        ),
    ],
)
def test_what_cannot_be_compressed_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainingConfig.model_validate(config(**fields))


def test_a_config_without_compression_is_what_it_was() -> None:
    assert "communication" not in TrainingConfig.model_validate(config()).model_dump()
