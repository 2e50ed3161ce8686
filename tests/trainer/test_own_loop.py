"""`tm.parallelize`: a user's own module in a user's own loop, over several ranks as in one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import trainmaster as tm
from tests.trainer.process_groups import process_group
from tests.trainer.ranks import Ranks
from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError
from trainmaster.models.layers import AuxiliaryLoss
from trainmaster.parallel import Parallel, cross_entropy
from trainmaster.parallel.mesh import Mesh

SCRIPT = """
import json, os
import torch
import torch.distributed as dist
from torch import nn
import trainmaster as tm

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    plan = tm.Plan(
        blocks="layers",
        stem=("start",),
        tail=("end",),
        tensor={"start": "vocabulary", "layers.*.norm": "norm", "layers.*.up": "column", "layers.*.down": "row",
                "end": "head"},
    )

    def __init__(self):
        super().__init__()
        self.start = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.end = nn.Linear(16, 32)

    def embed(self, tokens):
        return self.start(tokens)

    def shared(self, positions, x):
        return ()

    def unembed(self, x):
        return self.end(x)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.unembed(x)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Net()
if os.environ.get("TIED"):
    model.end.weight = model.start.weight
many = 4 if "pp" in os.environ["PARALLELISM"] else 1
parallel = tm.parallelize(
    model, json.loads(os.environ["PARALLELISM"]), sequence=8, micro_batch=8 // many, micro_batches=many,
    compression=json.loads(os.environ["COMPRESSION"]), **json.loads(os.environ.get("MORE", "{}"))
)
share = 8 // parallel.mesh.data_ranks
optimizer = torch.optim.AdamW(parallel.model.parameters(), lr=0.01)
run = tm.init()
losses = {}
more = {"reducer": parallel.reducer} if parallel.reducer is not None else {}
for step in run.steps(tm.State(model=parallel.model, optimizer=optimizer, **more), total=6, save_every=2):
    numbers = torch.Generator().manual_seed(step)
    tokens = torch.randint(32, (8, 9), generator=numbers)
    own = tokens[parallel.mesh.data_rank * share:][:share]
    batches = list(zip(own[:, :-1].chunk(many), own[:, 1:].chunk(many)))
    if os.environ.get("BY_HAND"):
        ((inputs, targets),) = batches
        loss = parallel.loss(parallel.forward(inputs), targets) / 64
        loss.backward()
        parallel.sum_gradients()
        loss = loss.detach()
    else:
        loss = parallel.forward_backward(batches, many, 64)
    dist.all_reduce(loss)
    optimizer.step()
    optimizer.zero_grad()
    parallel.completed()
    losses[step] = loss.item()
if dist.get_rank() == 0:
    with open(os.environ["LOSSES"], "w") as file:
        json.dump(losses, file)
"""

LAYOUTS: dict[str, dict[str, Any]] = {
    "shard": {"dpShard": 2},
    "tensor": {"tp": 2},
    "pipeline": {"pp": 2},
}


def losses(
    ranks: Ranks,
    folder: Path,
    world: int,
    parallelism: dict[str, Any],
    number: int = 1,
    compression: dict[str, Any] | None = None,
    **more: str,
) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    env = {
        "PARALLELISM": json.dumps(parallelism),
        "LOSSES": str(folder / f"losses-{number}.json"),
        environment.CHECKPOINT_DIR: str(folder / "checkpoints"),
        environment.ROUND: str(number),
        environment.JOB_UID: "job",
        "COMPRESSION": json.dumps(compression),
        **more,
    }
    outcome = ranks.run(folder, world, env, script=str(folder / "train.py"))
    assert outcome.codes == [0] * world, outcome.output
    found: dict[str, float] = json.loads((folder / f"losses-{number}.json").read_text())
    return found


@pytest.fixture(scope="session")
def alone(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The losses of one rank, by step."""
    return losses(ranks, tmp_path_factory.mktemp("alone"), 1, {})


@pytest.mark.processes
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_module_of_ones_own_trains_over_several_ranks_as_in_one(
    ranks: Ranks, tmp_path: Path, alone: dict[str, float], name: str
) -> None:
    several = losses(ranks, tmp_path / "several", 2, LAYOUTS[name])
    assert several == {step: pytest.approx(loss, rel=2e-6) for step, loss in alone.items()}


@pytest.mark.processes
def test_a_weight_that_the_stem_and_the_tail_share_is_trained_by_the_rank_that_has_both(
    ranks: Ranks, tmp_path: Path
) -> None:
    one = losses(ranks, tmp_path / "one", 1, {}, TIED="1")
    for schedule in ("ZBV", "DualPipeV"):
        parallelism = {"pp": 2, "pipeline": {"schedule": schedule}}
        several = losses(ranks, tmp_path / schedule, 2, parallelism, TIED="1")
        assert several == {step: pytest.approx(loss, rel=2e-6) for step, loss in one.items()}


@pytest.mark.processes
def test_it_goes_on_in_another_layout(ranks: Ranks, tmp_path: Path, alone: dict[str, float]) -> None:
    folder = tmp_path / "moving"
    for number, name in enumerate(["pipeline", "tensor", "shard"], start=1):
        found = losses(ranks, folder, 2, LAYOUTS[name], number)
        assert sorted(map(int, found)) == [*range(2 * number - 1, 7)]
        assert found == {step: pytest.approx(alone[step], rel=2e-6) for step in found}
        for path in (folder / "checkpoints").glob("step-*"):
            if int(path.name.split(".")[0].removeprefix("step-")) > 2 * number:
                shutil.rmtree(path)


@pytest.mark.processes
def test_compressed_gradients_are_summed_and_what_is_kept_is_saved(
    ranks: Ranks, tmp_path: Path, alone: dict[str, float]
) -> None:
    replicas, everything = {"dpReplicate": 2}, {"method": "TopK", "share": 1}
    for name, more in (("whole", {}), ("by-hand", {"BY_HAND": "1"})):
        found = losses(ranks, tmp_path / name, 2, replicas, compression=everything, **more)
        assert found == {step: pytest.approx(loss, rel=2e-6) for step, loss in alone.items()}
    some = {"method": "TopK", "share": 0.1}
    whole = losses(ranks, tmp_path / "some", 2, replicas, compression=some)
    assert whole["6"] != pytest.approx(alone["6"], rel=1e-4)
    for path in (tmp_path / "some" / "checkpoints").glob("step-*"):
        if not path.name.startswith("step-2."):
            shutil.rmtree(path)
    resumed = losses(ranks, tmp_path / "some", 2, replicas, number=2, compression=some)
    assert resumed == {step: whole[step] for step in ("3", "4", "5", "6")}


@pytest.mark.processes
def test_blocks_are_compiled_and_compute_in_eight_bits(
    compiling_ranks: Ranks, tmp_path: Path, alone: dict[str, float]
) -> None:
    ranks = compiling_ranks
    compiled = losses(ranks, tmp_path / "compiled", 2, {"dpShard": 2}, MORE='{"compile": true, "recompute": "Full"}')
    assert compiled == {step: pytest.approx(loss, rel=1e-5) for step, loss in alone.items()}
    eight = losses(ranks, tmp_path / "eight", 2, {"dpShard": 2}, MORE='{"precision": "fp8"}')
    assert eight == {step: pytest.approx(loss, rel=2e-2) for step, loss in alone.items()}
    half = losses(ranks, tmp_path / "half", 2, {"dpShard": 2}, MORE='{"precision": "bf16"}')
    assert eight != half


@pytest.mark.parametrize(
    ("parallelism", "more", "words"),
    [
        ({}, {"compile": True}, "compile: only for blocks, and Linear names none"),
        (
            {},
            {"recompute": "Full", "precision": "fp8"},
            "precision fp8 and recompute Full: only for blocks, and Linear",
        ),
        ({}, {"recompute": "Reversible", "precision": "fp8"}, "use precision bf16, or recompute Full"),
        ({"tp": 1}, {"recompute": "Reversible", "compile": True}, "leave one of them out"),
    ],
)
def test_what_blocks_cant_do_is_refused_in_words(
    parallelism: dict[str, int], more: dict[str, Any], words: str, one_rank: None
) -> None:
    with pytest.raises(ConfigError, match=words):
        tm.parallelize(torch.nn.Linear(2, 2), parallelism, **more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"precision": "fp16"}, r"^precision: fp16 needs a loss scale, .* tm.parallelize has none; use bf16"),
        ({"precision": "float16"}, r"^precision: 'float16' is not one of fp32, bf16, fp8$"),
        ({"recompute": "full"}, r"^recompute: 'full' is not one of None, Full, Selective, Reversible$"),
        ({"compression": {"method": "bf16"}}, r"^compression works on the device, and parallelism.sharding.offload"),
    ],
    ids=str,
)
def test_what_would_compute_something_else_is_refused(more: dict[str, Any], words: str, one_rank: None) -> None:
    parallelism = {"dpShard": 1, "sharding": {"offload": True}} if "compression" in more else {}
    with pytest.raises(ConfigError, match=words):
        tm.parallelize(torch.nn.Linear(2, 2), parallelism, **more)


@pytest.fixture
def one_rank() -> Iterator[None]:
    with process_group():
        yield


class Shared(nn.Module):
    def __init__(self, module: str, other: str, blocks: str = "layers") -> None:
        super().__init__()
        self.plan = tm.Plan(blocks=blocks)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
        self.start, self.end = nn.Embedding(4, 4), nn.Linear(4, 4)
        self.get_submodule(other).weight = self.get_submodule(module).weight


@pytest.mark.parametrize(("parallelism", "precision"), [({"dpShard": 2}, "fp32"), ({"dpReplicate": 2}, "bf16")])
@pytest.mark.parametrize(("module", "other"), [("layers.0.0", "layers.1.0"), ("start", "layers.1.0")])
def test_a_parameter_that_would_become_one_of_each_block_is_refused(
    parallelism: dict[str, int], precision: Any, module: str, other: str
) -> None:
    with process_group(0, 2), pytest.raises(ConfigError, match=r"parameter layers.\d.0.weight is shared with an"):
        tm.parallelize(Shared(module, other), parallelism, precision=precision)


@pytest.mark.parametrize(
    ("parallelism", "module", "blocks"),
    [
        ({"dpShard": 2}, "start", "layers"),
        ({"dpReplicate": 2}, "layers.0.0", "layers"),
        ({"dpShard": 2}, "layers.0.0", ""),
    ],
)
def test_a_parameter_within_one_unit_stays_shared(parallelism: dict[str, int], module: str, blocks: str) -> None:
    other = "end" if module == "start" else "layers.1.0"
    with process_group(0, 2):
        model = tm.parallelize(Shared(module, other, blocks), parallelism).model
        assert model.get_submodule(other).weight is model.get_submodule(module).weight


class Balanced(nn.Module):
    """It adds a loss of `weight` for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.extra = nn.Embedding(4, 4), AuxiliaryLoss()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        return self.extra(self.start(tokens), self.weight * tokens.numel())


@pytest.mark.parametrize(
    ("degrees", "rank", "share"),
    [({"dpReplicate": 2}, 1, 0.5), ({"dpShard": 2}, 0, 0.5), ({"cp": 2}, 1, 0.5), ({"tp": 2}, 0, 1), ({"tp": 2}, 1, 0)],
    ids=str,
)
def test_a_loss_of_the_model_itself_is_a_mean_over_the_tokens_of_all_ranks(
    degrees: dict[str, int], rank: int, share: float
) -> None:
    """Gradients are summed over the ranks, but for those of a tp group, which all compute the same."""
    model, tokens = Balanced(), torch.zeros(2, 3, dtype=torch.int64)
    sync: Any = SimpleNamespace(before=lambda last: None, after=lambda: None)
    rng: Any = SimpleNamespace()
    with process_group(rank, 2):
        parallel = Parallel(model, Mesh(degrees, "cpu"), sync, rng, None, cross_entropy, [model.extra])

    def gradient() -> float | None:
        grad, model.weight.grad = model.weight.grad, None
        return None if grad is None else grad.item()

    parallel.forward_backward([(tokens, tokens)], 1, 24.0)
    assert gradient() == pytest.approx(0.25 if share else 0)
    model(tokens).sum().backward()
    assert gradient() == pytest.approx(share)
    parallel.forward(tokens, 24.0).sum().backward()
    assert gradient() == pytest.approx(0.25 if share else 0)
    parallel.forward(tokens).sum().backward()
    assert gradient() == pytest.approx(share)


def test_a_process_group_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"needs torch\.distributed\.init_process_group"):
        tm.parallelize(torch.nn.Linear(2, 2), {"dpShard": 2})


def test_devices_of_one_process_compile_by_torchs_own_call() -> None:
    with pytest.raises(ConfigError, match="`compile` cannot be combined with `devices`"):
        tm.parallelize(torch.nn.Linear(2, 2), {"pp": 2}, devices=["cpu", "cpu"], compile=True)


def test_devices_of_one_process_have_nothing_to_compress() -> None:
    with pytest.raises(ConfigError, match="`compression` cannot be combined with `devices`"):
        tm.parallelize(torch.nn.Linear(2, 2), {"pp": 2}, devices=["cpu", "cpu"], compression={"method": "TopK"})
