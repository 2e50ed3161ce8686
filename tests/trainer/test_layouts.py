"""Every family of layouts in the training loop: killed and resumed, and changed into another one on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.job import Job, Undisturbed
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.rank.injected_faults import Fault, encode

pytestmark = pytest.mark.processes

LLAMA = {"name": "llama", "options": {"layers": 4, "width": 32, "heads": 4, "kv_heads": 2, "context": 32}}
SHALLOW = {"name": "llama", "options": {**LLAMA["options"], "layers": 2}}
MOE = {
    "name": "moe",
    "options": {"layers": 2, "width": 32, "heads": 4, "hidden": 32, "experts": 4, "context": 32},
}


@pytest.mark.parametrize(
    ("model", "parallelism"),
    [
        (SHALLOW, {"tp": 2}),
        (SHALLOW, {"cp": 2}),
        (SHALLOW, {"pp": 2}),
        (LLAMA, {"pp": 2, "pipeline": {"schedule": "ZBV"}}),
        (MOE, {"dpShard": 2, "ep": 2}),
    ],
    ids=["tensor", "context", "pipeline", "zero-bubble", "expert"],
)
def test_a_killed_and_resumed_run_has_the_losses_and_the_state_of_an_uninterrupted_one(
    ranks: Ranks, tmp_path: Path, text: Path, model: dict[str, Any], parallelism: dict[str, Any]
) -> None:
    training = {"model": model, "parallelism": parallelism, "steps": 6}
    whole = Job(ranks, tmp_path / "whole", text, **training)
    assert whole.round(1).codes == [0, 0]
    broken = Job(ranks, tmp_path / "broken", text, **training)
    socket = tmp_path / "faults"
    faults = {
        environment.FAULTS: encode([Fault("kill", step=5, rank=1)]),
        environment.FAULT_SOCKET: str(socket),
    }
    with fault_socket(socket):
        first = broken.round(1, env=faults, agent=True)
        assert first.codes == [ExitCode.PEER_LOST, -9], first.output
        second = broken.round(2, env=faults, agent=True)
    assert second.codes == [0, 0], second.output
    assert [m["step"] for m in second.said("resumed")] == [3, 3]
    assert broken.losses == whole.losses
    assert broken.final == {**whole.final, "round": 2}


@pytest.mark.parametrize(
    ("model", "micro", "layouts"),
    [
        (LLAMA, 2, [(4, {"dpShard": 2, "tp": 2}), (2, {"dpShard": 2}), (4, {"pp": 2, "tp": 2})]),
        (LLAMA, 2, [(2, {"pp": 2}), (4, {"dpReplicate": 2, "dpShard": 2}), (2, {"cp": 2})]),
        (
            LLAMA,
            1,  # or there are too few micro-batches for the last of these
            [
                (2, {"pp": 2, "pipeline": {"schedule": "ZBV"}}),
                (1, {}),
                (4, {"pp": 2, "dpShard": 2, "pipeline": {"schedule": "Interleaved1F1B"}}),
            ],
        ),
        (MOE, 2, [(4, {"dpShard": 4, "ep": 2}), (2, {"tp": 2}), (2, {"pp": 2})]),
    ],
    ids=["shard-tensor", "pipeline", "zero-bubble", "expert"],
)
def test_a_run_goes_on_in_other_layouts_with_the_same_losses(
    ranks: Ranks,
    undisturbed: Undisturbed,
    tmp_path: Path,
    text: Path,
    model: dict[str, Any],
    micro: int,
    layouts: list[tuple[int, dict[str, Any]]],
) -> None:
    batch = {"global": 8, "micro": micro}
    whole = undisturbed(1, model=model, batch=batch)
    moving = Job(ranks, tmp_path, text, model=model, batch=batch)
    for number, (size, parallelism) in enumerate(layouts, start=1):
        moving.config["parallelism"] = parallelism
        outcome = moving.round(number, size, agent=True, stop_at=3 * number, stop_bound=1)
        last = number == len(layouts)
        assert outcome.codes == [0 if last else ExitCode.SAVED] * size, outcome.output
        assert {m["step"] for m in outcome.said("resumed")} == {3 * (number - 1)}
    assert list(moving.losses) == list(whole.losses)
    for step, loss in whole.losses.items():
        assert moving.losses[step] == pytest.approx(loss, rel=2e-6)
