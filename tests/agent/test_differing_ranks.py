"""Real ranks of two pods that differ: none of them trains, and both pods are named."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def start_own_loop(world: World, slot: int, revision: str, text: Path) -> None:
    world.start(
        [],
        slot,
        TRAINMASTER_FRAMEWORK="Trainmaster",
        TRAINMASTER_CONFIG=json.dumps({**TRAINING, "data": {"path": str(text)}}),
        TRAINMASTER_PROGRAM=revision,
    )


def test_a_rank_of_our_loop_that_comes_back_alone_with_another_config_trains_no_step(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, slots=2)
    text = world.folder / "text"
    text.mkdir()
    (text / "a.txt").write_text("".join(f"the number {n} is followed by {n + 1}\n" for n in range(2000)))
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
