"""A model of one's own, named by the job: built, and refused in words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmaster import layout, models
from trainmaster.contract.config import ModelConfig, TrainingConfig
from trainmaster.errors import ConfigError

CODE = """
from torch import nn

answer = 42

def build(options):
    return nn.Sequential(nn.Embedding(options["vocabulary"], options["wide"]), nn.Linear(options["wide"], 256))

def number(options):
    return 7
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_models_of_a_test.py").write_text(CODE)
    (tmp_path / "own_broken_of_a_test.py").write_text("def build(:")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_models_of_a_test", None)


def config(name: str = "own_models_of_a_test:build", **options: Any) -> ModelConfig:
    return ModelConfig(name=name, options={"context": 16, "wide": 8, **options})


def test_the_function_gets_the_options_and_its_weights_follow_from_the_seed() -> None:
    one, same, other = (models.build(config(), seed) for seed in (1, 1, 2))
    assert one(torch.zeros(2, 16, dtype=torch.int64)).shape == (2, 16, 256)
    assert torch.equal(one[0].weight, same[0].weight)
    assert not torch.equal(one[0].weight, other[0].weight)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_of_a_test:build", r"module no_such_module_of_a_test can't be imported \(No module named"),
        ("own_broken_of_a_test:build", r"module own_broken_of_a_test can't be imported \(invalid syntax"),
        ("own_models_of_a_test:nothing", "module own_models_of_a_test has no nothing; a function of it would be right"),
        ("own_models_of_a_test:answer", "has no callable answer"),
        ("own_models_of_a_test:number", r"number returned a int; a torch\.nn\.Module would be right"),
        ("own_models_of_a_test:", "isn't module:function, such as"),
        ("../x:build", "isn't module:function, such as"),
    ],
)
def test_what_is_no_model_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.name: .*{words}") as refused:
        models.build(config(name), 0)
    assert len(str(refused.value).splitlines()) == 1


def test_nothing_is_imported_to_check_a_job() -> None:
    job = {"model": config("no_such_module_of_a_test:build").model_dump(), "steps": 1, "batch": {"global": 2}}
    training = TrainingConfig.model_validate({**job, "data": {"path": "@stdlib"}, "parallelism": {"tp": 3}})
    layout.validate(training)
    saved = models.described(training.model)
    models.check_same(saved, config("no_such_module_of_a_test:build", wide=9), "checkpoint x")
    with pytest.raises(ConfigError, match=r"^model\.name: is gpt, but checkpoint x was made with no_such_module_of"):
        models.check_same(saved, ModelConfig(), "checkpoint x")


def test_the_data_must_know_how_long_a_sample_is() -> None:
    with pytest.raises(ConfigError, match=r"^model\.options\.context: Field required"):
        models.validate(ModelConfig(name="a:b"))
