from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trainmaster.checkpoint.files import checkpoint_manifest, lineage
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.checkpoint.memory.memory_snapshot import LocalState
from trainmaster.checkpoint.state import capture, restore_objects, tagged_values
from trainmaster.checkpoint.state.save_shares import Place, owned
from trainmaster.checkpoint.state.storage_saver import Saver
from trainmaster.contract.config import OptimizerConfig
from trainmaster.contract.wire.checkpoint_format import Lineage
from trainmaster.errors import ConfigError
from trainmaster.optim.optimizer import ShardOptimizer


class Loader:
    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def objects(seed: int, **loader: Any) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": Loader(**loader)}


def train(things: dict[str, Any], steps: int) -> None:
    for step in range(steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        things["model"](x).square().mean().backward()
        things["optimizer"].step()
        things["optimizer"].zero_grad()
        things["scheduler"].step()


def given(model: nn.Module, value: float = 1.0) -> None:
    """Set all gradients to `value`."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def save(root: Path, things: dict[str, Any], step: int = 3) -> tuple[PosixStorage, str]:
    storage = PosixStorage(root)
    lineage.begin(storage, Lineage(1, None))
    saver = Saver(storage.root, rank=0, world_size=1, round=1)
    assert saver.save(step, capture.capture(things, 0), {"data": {"consumed": 24}})
    assert not saver.save(step, capture.capture(things, 0), {})
    saver.drain()
    return storage, f"step-{step}.r1"


def restore(storage: PosixStorage, directory: str, things: dict[str, Any], rank: int = 0) -> None:
    with torch.no_grad():
        restore_objects.restore(things, storage, directory, checkpoint_manifest.read_manifest(storage, directory), rank)


def test_everything_with_a_state_dict_comes_back_bit_by_bit(tmp_path: Path) -> None:
    there = objects(0, position=7, seen={3, 4}, generator=torch.arange(5), noise=np.arange(3.0), pair=(1, None))
    train(there, 3)
    storage, directory = save(tmp_path, there)
    here = objects(1)
    restore(storage, directory, here)
    assert here["loader"].state["seen"] == {3, 4}
    assert here["loader"].state["pair"] == (1, None)
    assert torch.equal(here["loader"].state["generator"], torch.arange(5))
    assert np.array_equal(here["loader"].state["noise"], np.arange(3.0))
    assert here["optimizer"].param_groups[0]["lr"] == there["optimizer"].param_groups[0]["lr"] != 0.1
    train(here, 2)
    train(there, 2)
    for a, b in zip(here["model"].state_dict().values(), there["model"].state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert here["scheduler"].state_dict() == there["scheduler"].state_dict()


def job(precision: str = "fp32", **options: Any) -> dict[str, Any]:
    """Return the objects of our own loop."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return {"model": model, "optimizer": ShardOptimizer(model, OptimizerConfig(**options), precision)}


def test_a_job_whose_optimizer_was_edited_resumes_with_the_edited_options(tmp_path: Path) -> None:
    there = job(weightDecay=0.1)
    given(there["model"])
    there["optimizer"].step(0.1)
    storage, directory = save(tmp_path, there)
    here = job(weightDecay=0.5, betas=(0.8, 0.99), eps=1e-6)
    restore(storage, directory, here)
    groups = here["optimizer"].param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert {(group["betas"], group["eps"]) for group in groups} == {((0.8, 0.99), 1e-6)}
    assert {group["lr"] for group in groups} == {0.1}  # that of the step, as `trainmaster prove` compares it
    averages = [state["exp_avg"] for state in here["optimizer"].state.values()]
    assert all(average.any() for average in averages)


def test_a_first_step_of_sgd_after_adamw_that_fp16_drops_leaves_no_momentum(tmp_path: Path) -> None:
    there = job("fp16")
    given(there["model"])
    there["optimizer"].step(0.1, torch.tensor(0.0))
    storage, directory = save(tmp_path, there)
    here = job("fp16", name="sgd")
    restore(storage, directory, here)
    given(here["model"], float("inf"))
    here["optimizer"].step(0.1, torch.tensor(1.0))
    assert not any(state["momentum_buffer"].any() for state in here["optimizer"].state.values())


@pytest.mark.parametrize(
    ("had", "momentum", "kinds"), [("adamw", 0.9, []), ("sgd", 0.0, []), ("sgd", 0.9, ["momentum_buffer"])]
)
def test_sgd_takes_no_state_from_a_checkpoint_that_it_would_never_use(
    tmp_path: Path, had: str, momentum: float, kinds: list[str]
) -> None:
    there = job(name=had)
    given(there["model"])
    there["optimizer"].step(0.1)
    storage, directory = save(tmp_path, there)
    here = job(name="sgd", momentum=momentum)
    restore(storage, directory, here)
    assert {kind for state in here["optimizer"].state.values() for kind in state} == set(kinds)


class Preconditioned(torch.optim.Optimizer):
    """An optimizer with tensors in lists, and from its second step on in a place where it had none, as SOAP."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                before = state.setdefault("past", [])
                state["oldest"] = before[0] if before else None
                state["mean"] = np.float64(parameter.grad.mean())
                state["past"] = [*before, parameter.grad.clone()]


def stepped(steps: int) -> dict[str, Any]:
    model = nn.Linear(3, 2)
    things = {"model": model, "optimizer": Preconditioned(model.parameters())}
    for step in range(steps):
        given(model, 1.0 + step)
        things["optimizer"].step()
    return things


def test_tensors_in_lists_of_an_optimizers_state_come_back(tmp_path: Path) -> None:
    storage, directory = save(tmp_path, stepped(2))
    here = stepped(0)
    restore(storage, directory, here)
    for parameter in here["model"].parameters():
        state = here["optimizer"].state[parameter]
        assert [float(past.mean()) for past in state["past"]] == [1.0, 2.0]
        assert (float(state["oldest"].mean()), state["mean"]) == (1.0, 2.0)
        assert state["past"][0].shape == parameter.shape


def test_state_of_an_optimizer_under_names_with_dots_comes_back(tmp_path: Path) -> None:
    def things() -> dict[str, Any]:
        model = nn.Linear(3, 2)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    there, here = things(), things()
    for value, parameter in enumerate(there["model"].parameters()):
        below = {"b": torch.full((2,), value + 0.25), "c.d": torch.full((2,), value + 0.5)}
        there["optimizer"].state[parameter] = {"a.b": torch.full_like(parameter, value), "a": below}
    storage, directory = save(tmp_path, there)
    restore(storage, directory, here)
    for value, parameter in enumerate(here["model"].parameters()):
        state = here["optimizer"].state[parameter]
        assert [*state] == ["a.b", "a"]
        assert torch.equal(state["a.b"], torch.full_like(parameter, value))
        assert state["a"]["b"].tolist() == [value + 0.25] * 2
        assert state["a"]["c.d"].tolist() == [value + 0.5] * 2


def test_each_stage_of_a_pipeline_gets_back_what_its_optimizer_has_besides_tensors(tmp_path: Path) -> None:
    def stage(rank: int, steps: int) -> dict[str, Any]:
        model = nn.ModuleDict({str(rank): nn.Linear(3, 2)})
        things = {"model": model, "optimizer": Preconditioned(model.parameters()), "own": Loader(rank=rank)}
        for step in range(steps):
            given(model, 1.0 + step)
            things["optimizer"].step()
        return things

    storage = PosixStorage(tmp_path)
    lineage.begin(storage, Lineage(1, None))
    for rank in range(2):
        there = stage(rank, 2)
        there["optimizer"].param_groups[0]["lr"] = 0.05
        place = Place(rank, range(rank, rank + 1))
        saver = Saver(storage.root, rank=rank, world_size=2, round=1, place=place)
        assert saver.save(3, capture.capture(there, rank), {})
        saver.drain()
    for rank in range(2):
        here = stage(rank, 0)
        restore(storage, "step-3.r1", here, rank)
        assert here["optimizer"].param_groups[0]["lr"] == 0.05
        assert {len(state["past"]) for state in here["optimizer"].state.values()} == {2}
        assert here["own"].state == {"rank": rank}


def test_a_save_to_memory_has_the_tensors_that_an_optimizer_has_made_since_the_boundary_before() -> None:
    things = stepped(0)
    state = LocalState(things, 0)
    for step in range(3):
        given(things["model"], 1.0 + step)
        things["optimizer"].step()
        state.boundary()
        layout = state.layout()
        assert layout is not None
        wanted = {path for value in state.values().values() for path in tagged_values.tensor_paths(value)}
        assert {f"optimizer.state.model.weight.past.{step}"} <= wanted <= set(layout.entries)
    assert "optimizer.state.model.weight.oldest" in layout.entries


@pytest.mark.parametrize("keys", [("a.b", "a"), ("a.b.c", "a"), (1, "1"), ("a.b.c", "a.b")], ids=lambda keys: f"{keys}")
def test_tensors_under_keys_with_dots_and_numbers_have_names_of_their_own(keys: tuple[Any, Any]) -> None:
    below: dict[str, Any] = {"": torch.zeros(3), "b": torch.zeros(3), "c": torch.zeros(3), "b.c": torch.zeros(3)}
    state = {keys[0]: torch.ones(2), keys[1]: torch.zeros(2) if keys[1] == "1" else below}
    for order in (state, dict(reversed(state.items()))):
        tensors: dict[str, torch.Tensor] = {}
        packed = tagged_values.pack({"inner": order}, "rank.0.thing", tensors)
        back = tagged_values.unpack(packed, tensors)["inner"]
        assert back[keys[0]].tolist() == [1.0, 1.0]
        assert len(tensors) == len(set(tagged_values.tensor_paths(packed))) == (2 if keys[1] == "1" else 5)


def test_keys_with_dots_stay_the_names_of_tensors_where_they_are_unambiguous() -> None:
    tensors: dict[str, torch.Tensor] = {}
    tagged_values.pack({"layer.weight": torch.ones(1), "layer.bias": torch.ones(1), "n": 1}, "rank.0.ema", tensors)
    assert [*tensors] == ["rank.0.ema.layer.weight", "rank.0.ema.layer.bias"]


def test_the_files_are_safetensors_that_need_no_torch_to_be_read(tmp_path: Path) -> None:
    things = objects(0)
    train(things, 1)
    storage, directory = save(tmp_path, things)
    manifest = checkpoint_manifest.read_manifest(storage, directory)
    weight = manifest.tensors["model.0.weight"]
    (chunk,) = weight.chunks
    raw = storage.read(f"{directory}/{chunk.file}", chunk.start, chunk.end)
    assert (weight.dtype, weight.shape) == ("F32", [5, 3])
    assert np.array_equal(np.frombuffer(raw, np.float32).reshape(5, 3), things["model"][0].weight.detach().numpy())
    assert "optimizer.state.model.0.weight.exp_avg" in manifest.tensors
    assert manifest.data == {"consumed": 24}


def test_a_changed_model_is_told_by_the_tensor_that_differs(tmp_path: Path) -> None:
    storage, directory = save(tmp_path, objects(0))
    wider = {"model": nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))}
    with pytest.raises(ConfigError, match=r"tensor model.0.weight has shape \[5, 3\], but \[6, 3\] is expected"):
        restore(storage, directory, wider)
    with pytest.raises(ConfigError, match=r"has no tensor other\.weight"):
        restore(storage, directory, {"other": nn.Linear(1, 1)})
    with pytest.raises(ConfigError, match="no state of 'sampler'"):
        restore(storage, directory, {"sampler": Loader()})


def test_a_rank_that_the_saving_world_lacked_takes_the_loader_of_rank_0(tmp_path: Path) -> None:
    storage, directory = save(tmp_path, objects(0, position=7))
    here = objects(1)
    restore(storage, directory, here, rank=5)
    assert here["loader"].state == {"position": 7}


def test_plain_tensors_are_saved_by_exactly_one_rank_and_buffers_by_rank_0() -> None:
    things = objects(0)
    train(things, 1)
    snapshot = capture.capture(things, 0)
    savers = [{piece.name for piece in owned(snapshot, Place(rank, range(3)))} for rank in range(3)]
    assert sorted(n for names in savers for n in names) == sorted(snapshot.tensors)
    assert {"model.1.running_mean", "model.1.num_batches_tracked"} <= savers[0]
    assert savers[1]
    assert savers[2]


def test_an_object_that_only_a_pickle_could_keep_is_refused_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"state loader.a.0 holds a builtins.object"):
        tagged_values.pack({"a": [object()]}, "loader", {})


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "x", True, None]},
        {1: "int key", (2, 3): "tuple key"},
        {"$": "a key like our tag"},
        (1, (2, frozenset({3}))),
        b"bytes",
        float("inf"),
        2**80,
    ],
)
def test_values_survive_as_they_were(value: Any) -> None:
    import json

    packed = json.loads(json.dumps(tagged_values.pack(value, "x", {})))
    back = tagged_values.unpack(packed, {})
    assert back == value
    assert type(back) is type(value)


def test_a_save_waits_for_no_disk_but_at_most_two_copies_wait_for_one(tmp_path: Path) -> None:
    import threading

    gate = threading.Event()
    sent: list[int] = []

    def send(message: dict[str, Any], fd: int) -> None:
        gate.wait()
        sent.append(message["step"])

    saver = Saver(str(tmp_path), rank=0, world_size=1, round=1, send=send)
    snapshot = capture.capture({"model": nn.Linear(2, 2)}, 0)
    saver.save(1, snapshot, {})
    saver.save(2, snapshot, {})
    third = threading.Thread(target=saver.save, args=(3, snapshot, {}))
    third.start()
    assert not saver.drain(timeout_s=0)
    gate.set()
    third.join()
    saver.drain()
    assert sent == [1, 2, 3]
