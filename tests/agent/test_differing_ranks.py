"""Real ranks of two pods that differ: neither enters a collective, and both pods are named."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.world import World
from trainmaster.contract.wire import Cause, Verdict

pytestmark = pytest.mark.processes

OTHER_TORCH = """
import os, torch, torch.distributed as dist
if os.environ["RANK"] == "1":
    torch.__version__ = "2.13.0"
try:
    dist.init_process_group("gloo")
except Exception as error:
    print("goes on alone", error, flush=True)
dist.all_reduce(torch.ones(1))
print("reduced", flush=True)
"""
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
        TRAINMASTER_REVISION=revision,
    )


def collectives(world: World) -> set[str]:
    """What ranks have entered, by all that agents have reported of round `world.operator.round`."""
    reports = [r for r in world.operator.reports if r.round == world.operator.round]
    return {rank.collective for report in reports for rank in report.ranks}


def config_error(verdict: Verdict, words: str) -> bool:
    return verdict.cause is Cause.CONFIG_ERROR and words in verdict.message and not verdict.traceback


def test_a_script_whose_pods_have_different_torch_comes_to_no_collective(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, slots=2, restarts=0)
    path = world.script(OTHER_TORCH)
    for slot in range(2):
        world.start(["python", path], slot)
    verdict = world.operator.wait_for_verdict()
    assert verdict.cause is Cause.CONFIG_ERROR
    assert all(f"in job-worker-{slot}-1" in verdict.message for slot in range(2))
    assert "torch 2.13.0 in job-worker-1-1" in verdict.message or ", 2.13.0 in job-worker-1-1" in verdict.message
    assert collectives(world) == {""}
    assert not any(word in world.log(slot) for slot in range(2) for word in ("reduced", "goes on alone", "Traceback"))


def test_a_rank_of_our_loop_that_comes_back_alone_with_another_config_trains_no_step(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, slots=2)
    text = world.folder / "text.txt"
    text.write_text("".join(f"the number {n} is followed by {n + 1}\n" for n in range(2000)))
    for slot in range(2):
        start_own_loop(world, slot, "aa", text)
    world.operator.wait_for_step(3, round=1)
    world.agents[1].send_signal(signal.SIGKILL)
    world.agents[1].wait()
    start_own_loop(world, 1, "bb", text)
    verdict = world.operator.wait_for_verdict(2)
    assert verdict.round == 2
    assert config_error(verdict, "config ")
    assert all(f"{name} in job-worker-{slot}-1" in verdict.message for slot, name in enumerate(("aa", "bb")))
    assert all(step == 0 for step in steps_of_round_2(world))


def steps_of_round_2(world: World) -> list[int]:
    return [rank.step for report in world.operator.reports if report.round == 2 for rank in report.ranks]
