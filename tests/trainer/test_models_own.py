"""A model of one's own, named by the job: built, and refused in words."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.job import Job
from tests.trainer.ranks import Outcome, Ranks
from trainmaster import models
from trainmaster.contract.config import ModelConfig, TrainingConfig
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism

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
    allowed_parallelism.validate(training)
    saved = models.described(training.model)
    models.check_same(saved, config("no_such_module_of_a_test:build", wide=9), "checkpoint x")
    with pytest.raises(ConfigError, match=r"^model\.name: is gpt, but checkpoint x was made with no_such_module_of"):
        models.check_same(saved, ModelConfig(), "checkpoint x")


OF_A_JOB = """
from torch import nn
import trainmaster as tm

class Net(nn.Module):
    plan = tm.Plan(blocks="blocks")

    def __init__(self, wide):
        super().__init__()
        self.start, self.end = nn.Embedding(256, wide), nn.Linear(wide, 256)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(wide, wide), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3))

    def forward(self, tokens):
        x = self.start(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.end(x)

def build(options):
    return Net(options["wide"])

def without_plan(options):
    return nn.Sequential(nn.Embedding(256, options["wide"]), nn.Linear(options["wide"], 256))
"""
LOOP = """
import os, sys
sys.path.insert(0, os.path.dirname(__file__))
from trainmaster.train import loop
loop.main()
"""


class OwnJob(Job):
    def __init__(self, ranks: Ranks, output: Path, text: Path, function: str = "build", **training: Any) -> None:
        model = {"name": f"of_a_job:{function}", "options": {"context": 16, "wide": 8}}
        super().__init__(ranks, output, text, model=model, parallelism={"dpShard": 2}, **training)

    def trained(self, number: int) -> Outcome:
        self.output.mkdir(exist_ok=True)
        (self.output / "of_a_job.py").write_text(OF_A_JOB)
        script = self.output / "train.py"
        script.write_text(LOOP)
        return self.round(number, agent=True, script=str(script))


@pytest.mark.processes
def test_it_resumes_with_the_same_bits_and_the_same_dropout(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    whole, broken = (OwnJob(ranks, tmp_path / name, text, recompute="Full") for name in ("whole", "broken"))
    for job in (whole, broken):
        outcome = job.trained(1)
        assert outcome.codes == [0, 0], outcome.output
    for path in (broken.output / "checkpoints").glob("step-*"):
        if not path.name.startswith("step-3."):
            shutil.rmtree(path)
    outcome = broken.trained(2)
    assert outcome.codes == [0, 0], outcome.output
    assert {m["step"] for m in outcome.said("resumed")} == {3}
    assert broken.losses == whole.losses
    assert broken.final == {**whole.final, "round": 2}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("function", "training", "words"),
    [
        ("nothing", {}, "model.name: module of_a_job has no nothing"),
        ("without_plan", {"compile": True}, "compile: only for blocks, and Sequential names none"),
    ],
)
def test_what_cant_be_trained_ends_with_one_sentence(
    ranks: Ranks, tmp_path: Path, text: Path, function: str, training: dict[str, Any], words: str
) -> None:
    outcome = OwnJob(ranks, tmp_path, text, function, **training).trained(1)
    assert outcome.refused, outcome.output
    assert words in outcome.output
    assert not any(told["traceback"] for told in outcome.said("failed") if not told["cascade"])
    assert not outcome.has_needless_traceback
    assert not (tmp_path / "checkpoints").exists()


def test_the_data_must_know_how_long_a_sample_is() -> None:
    with pytest.raises(ConfigError, match=r"^model\.options\.context: Field required"):
        models.validate(ModelConfig(name="a:b"))
