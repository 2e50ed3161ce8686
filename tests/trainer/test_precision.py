"""fp16: steps whose gradients overflow are dropped by all ranks alike, and the loss scale is part of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer import step_operators
from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster.contract.config import OptimizerConfig
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.parallel.blocks.loss_scale import LossScale, exhausted
from trainmaster.rank.injected_faults import encode, parse

MESHES = {"shard": {"dpShard": 2}, "pipeline": {"pp": 2}, "tensor": {"tp": 2}}


def test_the_scale_is_halved_at_an_overflow_and_doubled_after_many_steps_without() -> None:
    scale = LossScale("fp16", "cpu")
    scale.update(scale.overflowed(torch.tensor(float("inf"))))
    assert scale.state() == {"scale": 2.0**15, "steps": 0}
    for _ in range(LossScale.GROWS_AFTER - 1):
        scale.update(scale.overflowed(torch.tensor(1.0)))
    assert scale.state() == {"scale": 2.0**15, "steps": LossScale.GROWS_AFTER - 1}
    scale.update(scale.overflowed(torch.tensor(1.0)))
    assert scale.state() == {"scale": 2.0**16, "steps": 0}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_precisions_have_none(precision: str) -> None:
    scale = LossScale(precision, "cpu")
    loss = torch.tensor(3.0)
    assert scale.scaled(48.0) == 48.0
    assert scale.unscaled(loss) is loss
    assert scale.overflowed(torch.tensor(float("nan"))) is None
    assert scale.state() == {}


def test_gradients_that_overflow_at_any_scale_are_a_divergence() -> None:
    assert exhausted(7, {"loss_scale": 1.0}) == exhausted(7, {}) == ""
    assert exhausted(7, {"loss_scale": 2.0**-11}).startswith(
        "step 7: gradients overflow in fp16 even with a loss scale"
    )


@pytest.mark.parametrize("config", [OptimizerConfig(), OptimizerConfig(name="sgd")], ids=["adamw", "sgd"])
@pytest.mark.parametrize("at", [1, 2])
def test_an_optimizer_leaves_a_dropped_step_out(config: OptimizerConfig, at: int) -> None:
    """As if it had never been, be it the first one."""

    def trained(dropped: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = ShardOptimizer(model, config, "fp16")
        for step in (1, 2, 3):
            if step == at and not dropped:
                continue
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, float("nan") if step == at else float(step))
            optimizer.step(0.1, torch.tensor(float(step == at)))
        states = [value for state in optimizer.state.values() for value in state.values()]
        return [*model.parameters(), *states]

    assert all(torch.equal(a, b) for a, b in zip(trained(1), trained(0), strict=True))


@pytest.mark.processes
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_whole_parameters_are_cast_once_for_all_micro_batches_of_a_step(micro_batches: int, ranks: Ranks) -> None:
    size = step_operators.VOCABULARY * step_operators.WIDTH  # of the embedding and of the head, which are cast flat
    called = ranks.call(step_operators.counted, micro_batches, False)
    casts = [count for name, shape, count in called if name == "aten::_to_copy" and shape == [size]]
    assert casts == [2]


def job(ranks: Ranks, folder: Path, text: Path, mesh: dict[str, int], **training: Any) -> Job:
    return Job(ranks, folder, text, parallelism=mesh, precision="fp16", batch={"global": 8, "micro": 2}, **training)


SCRIPT = """
import torch
from trainmaster import parallel
from trainmaster.train import loop

spread = parallel.of_job
def of_job(*args, **kwargs):
    found = spread(*args, **kwargs)
    print("products:", torch.get_float32_matmul_precision(), flush=True)
    return found
parallel.of_job = of_job
loop.main()
"""


@pytest.mark.processes
@pytest.mark.parametrize(("asked", "found"), [({}, "highest"), ({"matmulPrecision": "High"}, "high")])
def test_products_in_fp32_are_as_exact_as_asked_for(
    ranks: Ranks, tmp_path: Path, text: Path, asked: dict[str, str], found: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    outcome = Job(ranks, tmp_path, text, steps=3, **asked).round(1, 1, script=str(tmp_path / "script.py"))
    assert outcome.codes == [0], outcome.output
    assert f"products: {found}" in outcome.output


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES.values(), ids=list(MESHES))
def test_an_overflow_on_one_rank_drops_the_step_on_all_and_a_resumed_run_has_the_same_scale(
    ranks: Ranks, tmp_path: Path, text: Path, mesh: dict[str, int]
) -> None:
    def run(name: str, socket: Path, **control: int) -> Job:
        faults = {environment.FAULTS: encode([parse("nan:rank=1,step=2")]), environment.FAULT_SOCKET: str(socket)}
        done = job(ranks, tmp_path / name, text, mesh)
        with fault_socket(socket) as fired:
            first = done.round(1, env=faults, agent=True, **control)
            assert fired == {"fault-0"}
        assert first.codes == [ExitCode.SAVED if control else 0] * 2, first.output
        return done

    whole = run("whole", tmp_path / "a")
    told = {line["step"]: line for line in whole.metrics}
    assert [step for step, line in told.items() if line.get("skipped")] == [2]
    assert [told[step]["loss_scale"] for step in (1, 2, 3, 9)] == [2.0**16, 2.0**16, 2.0**15, 2.0**15]
    assert told[9]["loss"] < told[1]["loss"]
    parted = run("parted", tmp_path / "b", stop_at=4, stop_bound=1)
    assert parted.round(2, agent=True).codes == [0, 0]
    assert parted.final == {**whole.final, "round": 2}
    assert parted.losses == whole.losses
