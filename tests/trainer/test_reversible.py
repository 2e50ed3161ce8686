"""Blocks of two streams, beside the same ones that keep all that their backward pass needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster import models
from trainmaster.contract.config import ModelConfig, TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism
from trainmaster.parallel.blocks import recompute, reversible
from trainmaster.rank.injected_faults import Fault, encode

SMALL = {"heads": 2, "width": 16, "context": 8, "reversible": True}


def model(name: str = "gpt", how: str = "Reversible", layers: int = 3) -> Any:
    found = models.build(ModelConfig(name=name, options={**SMALL, "layers": layers}), seed=1)
    if how != "None":
        recompute.apply(found.blocks, how)
    return found


def trained(net: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    logits = net(torch.arange(16).reshape(2, 8))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(16) * 3)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("layers", [1, 3, 12])
def test_gradients_are_those_of_the_model_that_keeps_everything(name: str, layers: int) -> None:
    loss, expected = trained(model(name, "None", layers))
    again, found = trained(model(name, "Reversible", layers))
    assert torch.equal(loss, again)  # forward passes are the same
    assert found.keys() == expected.keys() == dict(model(name, layers=layers).named_parameters()).keys()
    for path, gradient in expected.items():
        assert (found[path] - gradient).norm() <= 1e-6 * gradient.norm(), path


def test_gradients_have_the_same_bits_each_time() -> None:
    (_, one), (_, other) = trained(model()), trained(model())
    assert all(torch.equal(gradient, other[name]) for name, gradient in one.items())


def test_autograd_keeps_nothing_of_blocks() -> None:
    def saved(layers: int) -> int:
        places: dict[int, Any] = {}

        def pack(x: Tensor) -> Tensor:
            places[x.untyped_storage()._cdata] = x.untyped_storage()
            return x

        net = model(layers=layers)
        own = {p.untyped_storage()._cdata for p in net.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            net(torch.arange(16).reshape(2, 8))
        return sum(place.nbytes() for key, place in places.items() if key not in own)

    assert saved(2) == saved(9) > 0


def test_an_output_is_let_go_when_the_next_block_has_it() -> None:
    chain = reversible.Chain()
    first, second = chain.keep(torch.zeros(2)), chain.keep(torch.zeros(2))
    assert first.output is not None
    assert chain.taken(first.output.view(2)) is first  # an alias will do
    assert chain.taken(first.output) is None  # two blocks after one: the other keeps nothing of it
    place = second.output
    assert place is not None
    second.output = None
    assert chain.taken(place) is None  # its backward pass is over


def test_a_frozen_embedding_leaves_blocks_their_gradients() -> None:
    net = model()
    net.embedding.requires_grad_(False)
    _, gradients = trained(net)
    assert gradients.keys() == {name for name, _ in net.named_parameters()} - {"embedding.weight"}


def test_it_is_another_model_and_says_so() -> None:
    plain, streams = ({**SMALL, "layers": 1, "reversible": each} for each in (False, True))
    before = models.described(ModelConfig(name="gpt", options=plain))
    assert "reversible" not in before["options"]
    with pytest.raises(ConfigError, match=r"^model\.options\.reversible: is True, but .* with False; False would be"):
        models.check_same(before, ModelConfig(name="gpt", options=streams), "checkpoint x")
    with pytest.raises(ConfigError, match=r"^model\.options\.reversible: is False, but .* with True; True would be"):
        models.check_same(
            models.described(ModelConfig(name="gpt", options=streams)), ModelConfig(name="gpt", options=plain), "x"
        )


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "moe", "cnn"])
def test_a_model_of_one_stream_is_refused_in_a_sentence(name: str) -> None:
    job = TrainingConfig.model_validate(
        {
            "model": {"name": name},
            "data": {"path": "/data"},
            "steps": 1,
            "batch": {"global": 1},
            "recompute": "Reversible",
        }
    )
    with pytest.raises(ConfigError, match=f"^recompute: Reversible needs blocks of two streams, and model {name} has"):
        allowed_parallelism.validate(job)


def test_blocks_of_ones_own_of_one_stream_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="Linear is not one: it has no methods first and second"):
        recompute.apply([nn.Linear(2, 2)], "Reversible")


def test_a_mixture_of_experts_cant_be_reversible() -> None:
    with pytest.raises(ConfigError, match="tokens could choose other experts; only false would do"):
        models.validate(ModelConfig(name="moe", options={"reversible": True}))


@pytest.mark.processes
@pytest.mark.parametrize("parallelism", [{"dpReplicate": 2}, {"dpShard": 2}], ids=["replicate", "shard"])
def test_a_killed_run_goes_on_with_the_same_bits(
    ranks: Ranks, tmp_path: Path, text: Path, parallelism: dict[str, int]
) -> None:
    options = {"layers": 2, "width": 32, "heads": 2, "context": 32, "reversible": True}
    training = {"model": {"options": options}, "parallelism": parallelism, "recompute": "Reversible", "steps": 6}
    whole, broken = (Job(ranks, tmp_path / name, text, **training) for name in ("whole", "broken"))
    assert whole.round(1).codes == [0, 0]
    socket = tmp_path / "faults"
    faults = {
        environment.FAULTS: encode([Fault("kill", step=5, rank=1)]),
        environment.FAULT_SOCKET: str(socket),
    }
    with fault_socket(socket):
        assert broken.round(1, env=faults, agent=True).codes == [ExitCode.PEER_LOST, -9]
        second = broken.round(2, env=faults, agent=True)
    assert second.codes == [0, 0], second.output
    assert broken.final == {**whole.final, "round": 2}
    assert broken.losses == whole.losses
