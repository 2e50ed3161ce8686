"""Several devices of one process: what lies where, and that it trains as one device does.

There is one CPU, so where things lie is looked at on devices that torch only pretends to have: an operation whose
inputs are on two of them is an error there, as it is on real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import trainmaster as tm
from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel.local_devices import device_layers
from trainmaster.parallel.local_devices.device_copies import Copies

SIZES = {"layers": 4, "width": 32, "heads": 4, "context": 16}
FIRST, SECOND, THIRD = (torch.device("cuda", index) for index in range(3))


def llama() -> nn.Module:
    return models.build(ModelConfig(name="llama", options=SIZES), seed=3)


def move(module: nn.Module, device: torch.device) -> nn.Module:
    """`module.to(device)` for tensors without content, which that refuses."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(parameter.detach().to(device)))
    return module


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nn.Module, "to", move)
    with FakeTensorMode():
        yield


def tokens(batch: int = 5) -> torch.Tensor:
    return torch.zeros(batch, 16, dtype=torch.int64)


def lies(model: nn.Module) -> dict[str, set[str]]:
    """By the first two components of a parameter's name."""
    found: dict[str, set[str]] = {}
    for name, parameter in model.named_parameters():
        found.setdefault(".".join(name.split(".")[:2]), set()).add(str(parameter.device))
    return found


def test_layers_lie_on_devices_in_turn_and_the_stream_follows(pretended: None) -> None:
    model = llama()
    assert device_layers.apply(model, [FIRST, SECOND, THIRD], "Parameters", 16) == [
        range(0, 1),
        range(1, 3),
        range(3, 4),
    ]
    assert lies(model) == {
        "embedding.weight": {"cuda:0"},
        "blocks.0": {"cuda:0"},
        "blocks.1": {"cuda:1"},
        "blocks.2": {"cuda:1"},
        "blocks.3": {"cuda:2"},
        "norm.weight": {"cuda:2"},
        "head.weight": {"cuda:2"},
    }
    assert model(tokens()).device == THIRD


def test_without_what_brings_the_stream_along_the_devices_would_mix(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_layers, "_bring_inputs", lambda module, device: None)
    model = llama()
    device_layers.apply(model, [FIRST, SECOND], "Compute", 16)
    with pytest.raises(RuntimeError, match="devices"):
        model(tokens().to(FIRST))


def test_each_replica_computes_its_part_of_the_batch_on_its_device(pretended: None) -> None:
    copies = Copies(llama(), [FIRST, SECOND, THIRD])
    outputs = copies.outputs(tokens(5))
    assert [(output.device, len(output)) for output in outputs] == [(FIRST, 2), (SECOND, 2), (THIRD, 1)]
    assert {str(parameter.device) for parameter in copies.model.parameters()} == {"cuda:0"}


def step(model: nn.Module, parallel: Any, batch: int, number: int) -> list[torch.Tensor]:
    """The loss and the gradients of a step over random tokens."""
    numbers = torch.randint(256, (batch, 17), generator=torch.Generator().manual_seed(number))
    loss = parallel.forward_backward([(numbers[:, :-1], numbers[:, 1:])], 1, batch * 16)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return [loss, *gradients]


@pytest.mark.parametrize("batch", [7, 2], ids=["a smaller last part", "an empty last part"])
def test_parts_of_other_sizes_come_to_the_same_gradients(batch: int) -> None:
    one, many = llama(), llama()
    alone = tm.parallelize(one, {"dpReplicate": 1}, devices=["cpu"])
    several = tm.parallelize(many, {"dpReplicate": 3}, devices=["cpu"] * 3)
    for found, expected in zip(step(many, several, batch, 0), step(one, alone, batch, 0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    again = step(many, several, batch, 0)
    assert all(torch.equal(a, b) for a, b in zip(step(many, several, batch, 0), again, strict=True))


def test_any_loss_of_the_joined_output_gives_whole_gradients() -> None:
    one, many = llama(), llama()
    parallel = tm.parallelize(many, {"dpReplicate": 2}, devices=["cpu", "cpu"])
    numbers = torch.randint(256, (6, 16), generator=torch.Generator().manual_seed(1))
    one(numbers).square().mean().backward()
    parallel.forward(numbers).square().mean().backward()
    for found, expected in zip(many.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("divided", [False, True], ids=["mean", "divisor"])
@pytest.mark.parametrize("batch", [7, 2], ids=["a smaller last part", "an empty last part"])
def test_losses_of_the_model_itself_weigh_the_same_on_several_devices_with_a_loss_of_ones_own(
    batch: int, divided: bool
) -> None:
    """Also after a step of `forward_backward`, which divides them by its own number of tokens."""
    options = {**SIZES, "experts": 4, "balance": 1.0}
    one, many = (models.build(ModelConfig(name="moe", options=options), seed=3) for _ in range(2))
    parallel = tm.parallelize(many, {"dpReplicate": 3}, devices=["cpu"] * 3)
    step(many, parallel, 6, 0)
    numbers = torch.randint(256, (batch, 16), generator=torch.Generator().manual_seed(1))
    one(numbers).square().mean().backward()
    parallel.forward(numbers, batch * 16 if divided else None).square().mean().backward()
    for found, expected in zip(many.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-7)


class Tied(nn.Module):
    plan = tm.Plan(blocks="layers", stem=("start",), tail=("end",))

    def __init__(self, tie: bool, loose: bool) -> None:
        super().__init__()
        self.start, self.end = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        if tie:
            self.end.weight = self.start.weight
        if loose:
            self.scale = nn.Parameter(torch.ones(()))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.start(tokens)

    def shared(self, positions: torch.Tensor, x: torch.Tensor) -> tuple[()]:
        return ()

    def unembed(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(x)


def test_weights_without_one_place_are_refused_before_anything_moves(pretended: None) -> None:
    for model, sentence in (
        (Tied(tie=True, loose=False), "start.weight is used on several devices"),
        (
            Tied(tie=False, loose=True),
            "scale is in no block, and neither in plan.stem nor in plan.tail, so it has no device",
        ),
        (nn.Linear(2, 2), "model Linear declares no plan"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            device_layers.apply(model, [FIRST, SECOND], "Parameters", 16)
        assert {str(parameter.device) for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    ("parallelism", "options", "sentence"),
    [
        ({"tp": 2}, {}, "parallelism.tp: only pp and dpReplicate can be combined with devices"),
        ({"pp": 0}, {}, "parallelism.pp: a whole number of devices is expected, not 0"),
        ({"pp": 2, "dpReplicate": 2}, {}, "pp and dpReplicate cannot be combined on devices of one process; use ranks"),
        ({"dpReplicate": 3}, {}, "parallelism: its degrees need 3 devices, but devices has 2"),
        ({"pp": 2}, {}, "parallelism.pp needs sequence="),
        ({"dpReplicate": 2}, {"devices": ["cpu", "gpu"]}, "devices: .*gpu"),
        ({"dpReplicate": 2}, {"devices": ["cpu", "cuda:99"]}, "devices: there is no cuda:99 here"),
        (
            {"dpReplicate": 2},
            {"precision": "bf16"},
            "`precision` cannot be combined with `devices`; cast the model's weights instead",
        ),
        (
            {"pp": 2},
            {"devices": ["cpu"] * 5, "sequence": 16},
            "parallelism: its degrees need 2 devices, but devices has 5",
        ),
    ],
)
def test_what_one_process_cannot_do_is_refused(
    parallelism: dict[str, int], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tm.parallelize(llama(), parallelism, **{"devices": ["cpu", "cpu"], **options})


@pytest.mark.cuda
@pytest.mark.parametrize("parallelism", [{"pp": 2}, {"dpReplicate": 2}])
def test_a_cpu_and_a_gpu_train_as_the_cpu_alone_does(parallelism: dict[str, int]) -> None:
    one, many = llama(), llama()
    alone = tm.parallelize(one, {"dpReplicate": 1}, devices=["cpu"])
    both = tm.parallelize(many, parallelism, devices=["cpu", "cuda:0"], sequence=16)
    for found, expected in zip(step(many, both, 6, 0), step(one, alone, 6, 0), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-6)
