"""The largest micro-batch that fits: what is taken for how much memory, and that all ranks take the same."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.trainer.job import Job
from tests.trainer.process_groups import process_group
from tests.trainer.ranks import Ranks
from trainmaster.contract.config import ModelConfig, TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError
from trainmaster.host import memory_reserve, rank_memory
from trainmaster.models import allowed_parallelism
from trainmaster.tools.planner import survey
from trainmaster.tools.planner.estimate import estimate
from trainmaster.tools.planner.layouts import Layout
from trainmaster.tools.planner.machine import Machine
from trainmaster.tools.planner.survey import Survey
from trainmaster.train import auto_micro_batch
from trainmaster.train.process_group import World


def config(**training: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"options": {"layers": 2, "heads": 4, "width": 64, "context": 64}},
            "data": {"path": "/data"},
            "steps": 10,
            "batch": {"global": 64, "autoMicro": True},
            **training,
        }
    )


@cache
def surveyed(model: str) -> Survey:
    return Survey(ModelConfig.model_validate_json(model))


def survey_of(model: ModelConfig) -> Survey:
    """One for each model: what it finds out of slices of the model takes a second each, whoever asks."""
    return surveyed(model.model_dump_json())


def peak(job: TrainingConfig, ranks: int, micro: int) -> int:
    machine = Machine(flops=1.0, bandwidth=1.0, memory=None)
    return estimate(Layout(job, ranks).with_micro_batch(micro), survey_of(job.model), machine).memory.peak


@pytest.fixture
def one_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    """`microbatch.largest` finds the survey that the test has."""
    monkeypatch.setattr(survey, "Survey", survey_of)


@pytest.mark.usefixtures("one_survey")
@pytest.mark.parametrize("parallelism", [{}, {"dpShard": 2}, {"pp": 2}, {"tp": 2}], ids=str)
def test_it_is_the_largest_one_that_fits(parallelism: dict[str, int]) -> None:
    job = config(parallelism=parallelism)
    for micro in (8, 4, 2):
        needed = peak(job, 2, micro)
        assert auto_micro_batch.largest(job, 2, needed) == (micro, needed)
        assert auto_micro_batch.largest(job, 2, needed - 1)[0] == micro // 2


@pytest.mark.usefixtures("one_survey")
def test_without_room_for_one_sequence_it_is_one_all_the_same() -> None:
    assert auto_micro_batch.largest(config(), 2, 1)[0] == 1


def test_the_limit_is_the_containers_or_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Limited:
        def limit(self) -> int | None:
            return 8 << 30

    class Unlimited(Limited):
        def limit(self) -> int | None:
            return None

    monkeypatch.setattr(auto_micro_batch, "_ranks_of_machine", lambda world: 4)
    monkeypatch.setattr(auto_micro_batch, "_machine", lambda: 64 << 30)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv(environment.RAM_BUDGET, str(1 << 30))
    world = World(0, 4, torch.device("cpu"), None)
    for group, share in ((Limited(), 4 << 30), (Unlimited(), 16 << 30), (None, 16 << 30)):
        monkeypatch.setattr(rank_memory, "container", lambda group=group: group)
        expected = (share - (1 << 29) - memory_reserve.PROCESS) * memory_reserve.USABLE
        assert auto_micro_batch._budget(world) == int(expected)


@pytest.fixture
def alone() -> Any:
    with process_group():
        yield World(0, 1, torch.device("cpu"), None)


def test_a_restart_finds_what_was_found_unless_it_was_for_something_else(
    alone: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def largest(job: TrainingConfig, ranks: int, budget: int) -> tuple[int, int]:
        asked.append(job.batch.global_)
        return 4, 1000

    monkeypatch.setattr(auto_micro_batch, "_elsewhere", largest)
    kept = tmp_path / "micro.json"
    for _ in range(2):
        settled, words = auto_micro_batch.settle(config(), alone, kept)
        assert settled.batch.micro == 4
        assert not settled.batch.autoMicro
        assert words.startswith("micro-batch: 4 sequences x 16, an estimated 0 MiB of the ")
    assert asked == [64]
    auto_micro_batch.settle(config(batch={"global": 32, "autoMicro": True}), alone, kept)
    assert asked == [64, 32]
    kept.write_text('{"of": ')
    auto_micro_batch.settle(config(), alone, kept)
    assert asked == [64, 32, 64]
    auto_micro_batch.settle(config(), alone, tmp_path / "not" / "there" / "micro.json")
    assert asked == [64, 32, 64, 64]


def test_a_job_that_does_not_ask_is_left_as_it_is() -> None:
    job = config(batch={"global": 64})
    assert auto_micro_batch.settle(job, World(0, 1, torch.device("cpu"), None), None) == (job, "")


@pytest.mark.processes
def test_ranks_with_little_memory_take_small_micro_batches_and_have_the_same_losses(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    plain = Job(ranks, tmp_path / "plain", text, batch={"global": 16, "micro": 2}, steps=4)
    assert plain.round(1).codes == [0, 0]
    found = Job(ranks, tmp_path / "found", text, batch={"global": 16, "autoMicro": True}, steps=4)
    job = TrainingConfig.model_validate(found.config)
    room = peak(job, 2, 2) / memory_reserve.USABLE + memory_reserve.PROCESS + 1000
    group = rank_memory.container()
    limit = group.limit() if group is not None else None
    share = limit if limit is not None else auto_micro_batch._machine() / 2
    taken = {environment.RAM_BUDGET: str(int(share - room)), "LOCAL_WORLD_SIZE": "1"}
    for number, steps in ((1, 4), (2, 8)):
        found.config["steps"] = steps
        done = found.round(number, env=taken)
        assert done.codes == [0, 0], done.output
        assert done.output.count("micro-batch: 2 sequences x 4, ") == 1
    assert {step: found.losses[step] for step in plain.losses} == plain.losses
    assert json.loads((tmp_path / "found" / "checkpoints" / "micro.json").read_text())["micro"] == 2


def test_who_asks_for_both_or_for_what_cannot_be_estimated_is_told() -> None:
    with pytest.raises(ValidationError, match=r"micro 2 sets .*, and autoMicro chooses it; leave one of them out"):
        config(batch={"global": 8, "micro": 2, "autoMicro": True})
    with pytest.raises(ConfigError, match=r"^batch\.autoMicro: the memory of model cnn can't be estimated"):
        allowed_parallelism.validate(config(model={"name": "cnn"}, data={"source": "arrays", "path": "/data"}))
    with pytest.raises(ConfigError, match=r"^batch\.autoMicro: the memory of model test_microbatch:no_such can't be"):
        allowed_parallelism.validate(
            config(model={"name": "test_microbatch:no_such", "options": {"context": 8, "vocabulary": 8}})
        )
    with pytest.raises(ConfigError, match=r"^batch\.autoMicro: the memory of islands can't be estimated"):
        allowed_parallelism.validate(config(parallelism={"island": 2}))


def test_trainers_that_do_not_know_it_are_not_told_of_it() -> None:
    assert "autoMicro" not in config(batch={"global": 64}).model_dump()["batch"]
    assert config().model_dump()["batch"]["autoMicro"] is True
