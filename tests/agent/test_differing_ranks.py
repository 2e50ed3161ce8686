"""Real ranks of two pods that differ: none of them trains, and both pods are named."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.other_torch import OTHER_TORCH, VERSION
from tests.agent.world import World
from trainmaster.contract.wire import Cause

pytestmark = pytest.mark.processes

TRAINING: dict[str, Any] = {
    "model": {"options": {"layers": 1, "width": 16, "heads": 1, "context": 16}},
    "batch": {"global": 4, "micro": 2},
    "parallelism": {},
    "device": "CPU",
    "steps": 100000,
}


def start_own_loop(world: World, slot: int, revision: str, text: Path, **env: str) -> None:
    world.start(
        [],
        slot,
        TRAINMASTER_FRAMEWORK="Trainmaster",
        TRAINMASTER_CONFIG=json.dumps({**TRAINING, "data": {"path": str(text)}}),
        TRAINMASTER_PROGRAM=revision,
        **env,
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"the number {n} is followed by {n + 1}\n" for n in range(2000)))
    return folder


def test_a_rank_of_our_loop_whose_pod_has_another_torch_enters_no_collective(
    make_world: Callable[..., World], machine_zygote: Path, text: Path
) -> None:
    world = make_world(machine_zygote, slots=2)
    other = world.folder / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(OTHER_TORCH)
    start_own_loop(world, 0, "aa", text)
    start_own_loop(world, 1, "aa", text, PYTHONPATH=str(other), TRAINMASTER_ZYGOTE_ENABLED="0")
    verdict = world.operator.wait_for_verdict(1)
    assert (verdict.cause, verdict.traceback) == (Cause.CONFIG_ERROR, "")
    assert f"{VERSION} in job-worker-1-1" in verdict.message
    assert "in job-worker-0-1" in verdict.message
    ranks = [rank for report in world.operator.reports for rank in report.ranks]
    assert {(rank.step, rank.collective) for rank in ranks} == {(0, "")}


def test_a_rank_of_our_loop_that_comes_back_alone_with_another_config_trains_no_step(
    make_world: Callable[..., World], machine_zygote: Path, text: Path
) -> None:
    world = make_world(machine_zygote, slots=2)
    for slot in range(2):
        start_own_loop(world, slot, "aa", text)
    world.operator.wait_for_step(3, round=1)
    world.agents[1].send_signal(signal.SIGKILL)
    world.agents[1].wait()
    start_own_loop(world, 1, "bb", text)
    verdict = world.operator.wait_for_verdict(2)
    assert (verdict.round, verdict.cause, verdict.traceback) == (2, Cause.CONFIG_ERROR, "")
    assert verdict.message.startswith("config ")
    assert all(f"{name} in job-worker-{slot}-1" in verdict.message for slot, name in enumerate(("aa", "bb")))
    ranks = [rank for report in world.operator.reports if report.round == 2 for rank in report.ranks]
    assert {(rank.step, rank.collective) for rank in ranks} == {(0, "")}
