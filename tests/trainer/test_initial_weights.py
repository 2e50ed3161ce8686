"""The initial weights of a job's model: drawn late, where no checkpoint has set them, with the same numbers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.trainer import test_checkpoint
from trainmaster import models
from trainmaster.checkpoint.files import checkpoint_manifest
from trainmaster.checkpoint.state import restore_objects
from trainmaster.contract.config import ModelConfig
from trainmaster.models import initialization
from trainmaster.models.initialization import WithoutDraws, generator
from trainmaster.train.initial_weights import InitialWeights

TRANSFORMER = {"layers": 2, "heads": 2, "width": 16, "context": 12}
OPTIONS = {"bert": TRANSFORMER, "cnn": {"layers": 2}, "gpt": TRANSFORMER, "llama": TRANSFORMER, "moe": TRANSFORMER}
SEED, CPU = 7, torch.device("cpu")


def undrawn(name: str) -> tuple[nn.Module, InitialWeights]:
    model, stds = models.build_undrawn(ModelConfig(name=name, options=OPTIONS[name]), SEED, CPU)
    return model, InitialWeights(stds, SEED)


def by_hand(model: nn.Module) -> dict[str, Tensor]:
    """The initial values of a model's parameters, one after the other, as the definition says."""
    found = {}
    for name, parameter in model.named_parameters():
        std, values = model.initial_std(name), torch.empty(parameter.shape)
        found[name] = values.fill_(1.0) if std is None else values.normal_(0.0, std, generator=generator(SEED, name))
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_weights_that_are_drawn_late_are_those_of_a_model_that_is_built_with_them(name: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, weights = undrawn(name)
        assert all(parameter.isnan().all() for parameter in model.parameters())
        drawn = weights.draw(model)
        built = models.build(ModelConfig(name=name, options=OPTIONS[name]), SEED)
    finally:
        torch.set_num_threads(before)
    expected = by_hand(built)
    assert drawn == expected.keys()
    for state in (model.state_dict(), built.state_dict()):
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[key], value) for key, value in expected.items())


def test_a_restored_model_costs_no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialization, "_fill", lambda *_: pytest.fail("a parameter is drawn"))
    model, weights = undrawn("llama")
    assert weights.draw(model, {name for name, _ in model.named_parameters()}) == set()


def test_a_parameter_that_the_checkpoint_does_not_set_is_drawn(tmp_path: Path) -> None:
    saved, weights = undrawn("gpt")
    weights.draw(saved)
    for parameter in saved.parameters():
        parameter.detach().add_(1)
    storage, directory = test_checkpoint.save(tmp_path, {"model": saved})

    model, weights = undrawn("gpt")
    # Whatever the reason is that a module's state lacks one of its parameters.
    model.register_state_dict_post_hook(lambda module, state, *_: state.__delitem__("blocks.1.mlp.up.weight"))
    manifest = checkpoint_manifest.read_manifest(storage, directory)
    with torch.no_grad():
        names = restore_objects.restore({"model": model}, storage, directory, manifest, 0)
    drawn = weights.draw(model, {name.removeprefix("model.") for name in names})

    assert drawn == {"blocks.1.mlp.up.weight"}
    own = by_hand(saved)["blocks.1.mlp.up.weight"]
    assert torch.equal(model.get_parameter("blocks.1.mlp.up.weight"), own)
    others = [(name, p) for name, p in model.named_parameters() if name not in drawn]
    assert all(torch.equal(parameter, saved.get_parameter(name)) for name, parameter in others)


def test_a_model_without_draws_leaves_torchs_generator_alone_and_keeps_buffers_and_constants() -> None:
    class Layers(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.embedding = nn.Embedding(3, 4)
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("angles", torch.arange(4.0).cos())
            self.register_buffer("noise", torch.empty(4).normal_())

    torch.manual_seed(1)
    expected = torch.empty(4).normal_()
    torch.manual_seed(1)
    with WithoutDraws():
        layers = Layers()
    assert torch.equal(layers.noise, expected)  # nothing else was drawn
    assert torch.equal(layers.angles, torch.arange(4.0).cos())
    assert torch.equal(layers.norm.running_var, torch.ones(4))
    assert torch.equal(layers.norm.weight, torch.ones(4))


def test_buffers_of_a_model_without_weights_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = models.module(models.validate(ModelConfig(name="gpt", options=OPTIONS["gpt"])))
    whole.register_buffer("angles", torch.arange(4.0).cos(), persistent=False)
    monkeypatch.setattr(models.built_in_models, "module", lambda options: copy.deepcopy(whole))
    model, _ = undrawn("gpt")
    assert torch.equal(model.angles, whole.angles)
    assert model.head.weight.isnan().all()
