"""Models: their options, their initial weights, what they compute."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError
from trainmaster.models.gpt import GPT
from trainmaster.models.initialization import initialize
from trainmaster.models.options import GPTOptions

SMALL = {"layers": 2, "heads": 2, "width": 16, "context": 12}


def small(**options: Any) -> ModelConfig:
    return ModelConfig(options={**SMALL, **options})


def test_logits_cover_all_bytes_at_each_position() -> None:
    tokens = torch.zeros(3, 12, dtype=torch.int64)
    assert models.build(small(), seed=0)(tokens).shape == (3, 12, 256)


def test_a_position_sees_nothing_that_follows_it() -> None:
    model = models.build(small(), seed=0)
    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any()


def test_the_order_of_bytes_matters() -> None:
    model = models.build(small(), seed=0)
    one, other = torch.tensor([[65, 66, 67]]), torch.tensor([[66, 65, 67]])
    assert not torch.allclose(model(one)[:, -1], model(other)[:, -1])


def test_an_untrained_model_is_about_as_good_as_guessing() -> None:
    model = models.build(small(width=64), seed=0)
    tokens = torch.randint(0, 256, (8, 12), generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    assert 5.5 < loss.item() < 7.0


def test_weights_depend_on_the_seed_and_not_on_the_global_generator() -> None:
    torch.manual_seed(1)
    first = models.build(small(), seed=5).state_dict()
    torch.manual_seed(2)
    torch.rand(100)
    second = models.build(small(), seed=5).state_dict()
    other = models.build(small(), seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_a_parameter_is_the_same_whatever_the_order_of_construction() -> None:
    model = GPT(GPTOptions(**SMALL))
    children = dict(model._modules)
    model._modules.clear()
    model._modules.update(reversed(children.items()))
    initialize(model, seed=5)
    expected = models.build(small(), seed=5).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_parameters_of_equal_shape_start_differently() -> None:
    weights = models.build(small(), seed=0).state_dict()
    assert not torch.equal(weights["blocks.0.mlp.up.weight"], weights["blocks.1.mlp.up.weight"])


def test_a_model_tells_its_blocks() -> None:
    assert len(list(models.build(small(layers=3), seed=0).blocks)) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 2}, r"model.options: 'layer' is unknown; did you mean layers\?"),
        ({"layers": "2"}, r"model.options.layers: .* valid integer; got '2'"),
        ({"layers": 0}, r"model.options.layers: .* greater than or equal to 1; got 0"),
        ({"width": 130, "heads": 4}, r"width 130 over 4 heads .*; width 128 would"),
        ({"dropout": 0.1}, r"dropout 0.1 is not supported yet, only 0"),
    ],
)
def test_a_wrong_option_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        models.validate(ModelConfig(options=options))


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        models.validate(ModelConfig(options={"layer": 2, "heads": 0, "depth": 1}))
    assert len(str(refusal.value).splitlines()) == 3


def test_an_unknown_model_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"model.name: 'gtp' is unknown; did you mean gpt\?"):
        models.build(ModelConfig(name="gtp"), seed=0)


def test_options_are_checked_without_torch_and_numpy() -> None:
    code = (
        "import sys, trainmaster.data.files, trainmaster.faults; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
