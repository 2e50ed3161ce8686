"""Compiled blocks: one compilation for all that are alike, none after a restart, and what can't be compiled.

That they compute what others do is in the parity table.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
from pydantic import ValidationError
from torch._dynamo.utils import counters

from tests.trainer import step_operators
from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster import models
from trainmaster.contract.config import ModelConfig, TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism
from trainmaster.parallel.blocks import compiling, float8, recompute
from trainmaster.rank.injected_faults import Fault, encode
from trainmaster.train.measures.memory_report import Activations

needs_compiler = pytest.mark.skipif(bool(compiling.lacks("cpu")), reason="this machine has no compiler")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled, of this test run alone: how the compiler is called has to be found out once for both tests."""
    return tmp_path_factory.mktemp("compiled")


GPT = {"name": "gpt", "options": {"layers": 3, "heads": 2, "width": 16, "context": 8}}


@pytest.mark.processes
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
def test_blocks_that_are_alike_are_compiled_once_and_compute_the_same(
    backend: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where activations are counted, as in the first step of a round. `aot_eager` captures and differentiates the
    same graphs and generates no code, which takes most of the time."""
    monkeypatch.setenv(compiling.CACHE, str(cache))
    compiling.prepare("cpu")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    counters.clear()
    plain, compiled = (models.build(ModelConfig.model_validate(GPT), 0) for _ in range(2))
    compiling.apply(compiled.blocks)
    tokens = torch.arange(16).view(2, 8)
    counted = Activations(compiled)
    with counted.counted():
        compiled(tokens).square().mean().backward()
    compiled(tokens).square().mean().backward()
    for _ in range(2):
        plain(tokens).square().mean().backward()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert counted.most["blocks.2"] > 0
    for found, expected in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.processes
@pytest.mark.parametrize("how", ["None", "Full", "Selective"])
def test_blocks_that_compute_in_8_bits_are_compiled_whatever_they_recompute(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left as they are they would compute the same, so only the graphs show it."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    options = {**GPT["options"], "width": 32}
    plain, compiled = (
        models.build(ModelConfig.model_validate({**GPT, "options": options}), 0).to(torch.bfloat16) for _ in range(2)
    )
    for model in (plain, compiled):
        float8.apply(model.blocks, "cpu")
        if how != "None":
            recompute.apply(model.blocks, how)
    with dynamo.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=False):  # is what it was when this test is over
        compiling.apply(compiled.blocks, "fp8")
        tokens = torch.arange(16).view(2, 8)
        for model in (plain, compiled):
            model(tokens).float().square().mean().backward()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    for found, expected in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)


@pytest.mark.processes
def test_the_loss_is_compiled_together_with_the_cast_of_its_logits(compiling_ranks: Ranks) -> None:
    """Outside of a graph, each of these operators passes over all logits in fp32."""
    called = compiling_ranks.call(step_operators.counted, 1, True)
    width = step_operators.VOCABULARY
    of_logits = {name for name, shape, _ in called if shape and shape[-1] == width and len(shape) > 1}
    assert "aten::mm" in of_logits  # the backward pass of the head, which is not compiled
    assert not of_logits & {
        "aten::_to_copy",
        "aten::_log_softmax",
        "aten::_log_softmax_backward_data",
        "aten::nll_loss_forward",
    }


def config(**fields: Any) -> dict[str, Any]:
    return {"data": {"path": "/data"}, "steps": 3, "batch": {"global": 8}, "compile": True, **fields}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parallelism": {"tp": 2}}, r"compile .* with parallelism.tp 2 they exchange data with other ranks; use tp 1"),
        ({"parallelism": {"cp": 4}}, r"compile .* with parallelism.cp 4 they exchange"),
        (
            {"parallelism": {"pp": 2, "pipeline": {"schedule": "ZBV"}}},
            r"compile .*\.schedule ZBV cuts it in two; use 1F1B, ",
        ),
        ({"recompute": "Reversible"}, "compile cannot trace .* Reversible .*; leave one of them out"),
    ],
    ids=["tensor", "context", "zero-bubble", "reversible"],
)
def test_blocks_that_cannot_be_compiled_are_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainingConfig.model_validate(config(**fields))


def test_experts_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"^compile: what a block of model moe computes depends on .* experts"):
        allowed_parallelism.validate(TrainingConfig.model_validate(config(model={"name": "moe"})))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_machine_without_a_compiler_is_refused_in_words(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(
        ConfigError, match=r"^training.compile: torch.compile needs a C\+\+ compiler, and there is no no-"
    ):
        compiling.check(device)


def test_a_config_that_does_not_compile_is_what_it_was() -> None:
    assert "compile" not in TrainingConfig.model_validate(config(compile=False)).model_dump(mode="json")


@pytest.mark.processes
def test_a_rank_that_cannot_compile_says_so_and_ends_with_exit_2(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, compile=True)
    outcome = job.round(1, env={"CXX": "no-such-compiler"}, agent=True)
    assert outcome.refused, outcome.output
    told = [message for message in outcome.said("failed") if not message["cascade"]]
    assert "training.compile: torch.compile needs a C++ compiler" in told[0]["message"]
    assert not any(message["traceback"] for message in told)
    assert not outcome.has_needless_traceback


@needs_compiler
@pytest.mark.processes
def test_a_killed_and_resumed_run_has_the_same_bits_and_compiles_nothing_again(
    compiling_ranks: Ranks, tmp_path: Path, text: Path, cache: Path
) -> None:
    ranks = compiling_ranks
    evaluation = {"every": 4, "data": {"path": str(text)}, "samples": 4}
    training = {"parallelism": {"dpShard": 2}, "compile": True, "evaluation": evaluation}
    whole = Job(ranks, tmp_path / "whole", text, **training)
    assert whole.round(1, env={compiling.CACHE: str(cache)}).codes == [0, 0]
    compiled = {*cache.rglob("*.so")}
    assert compiled
    broken = Job(ranks, tmp_path / "broken", text, **training)
    socket = tmp_path / "faults"
    faults = {environment.FAULTS: encode([Fault("kill", step=5, rank=1)]), environment.FAULT_SOCKET: str(socket)}
    with fault_socket(socket):
        broken.round(1, env={**faults, compiling.CACHE: str(cache)}, agent=True)
        second = broken.round(2, env={**faults, compiling.CACHE: str(cache)}, agent=True)
    assert second.codes == [0, 0], second.output
    assert [m["step"] for m in second.said("resumed")] == [3, 3]
    assert {*cache.rglob("*.so")} == compiled
    assert broken.losses == whole.losses
    assert broken.final == {**whole.final, "round": 2}
