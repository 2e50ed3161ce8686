"""Between two rounds: ranks that hold a step which nobody else has may save it before they are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import World

pytestmark = pytest.mark.processes

RANK = """
import os, signal, sys, time
from trainmaster.contract.wire import Progress, ProgressRecord, channel
from trainmaster.contract.wire.progress_record import RESCUES
record = ProgressRecord.open(int(os.environ["TRAINMASTER_PROGRESS_FD"]))
link = channel.Channel.open(int(os.environ["TRAINMASTER_CHANNEL_FD"]))
round, rank, (way, path) = int(os.environ["TRAINMASTER_ROUND"]), int(os.environ["RANK"]), sys.argv[1:]
if round == 1:
    record.write(Progress(round=round, rank=rank, flags=RESCUES, step=5, resumed_step=0, beat_ns=time.monotonic_ns()))
    print("trains", flush=True)
    if rank == 0 and way == "saves":
        assert link.receive()[0]["kind"] == channel.RESCUE
        link.send(channel.RESCUING, {})
        while not os.path.exists(path):
            time.sleep(0.01)
        print("saved", flush=True)
        link.send(channel.RESCUED, {"step": 5})
    if rank == 0 and way == "parks":
        link.send(channel.RESCUED, {"step": 5})
    signal.pause()
print("waits for", record.control().ranks_ending, flush=True)
while record.control().ranks_ending:
    time.sleep(0.01)
print("chooses", flush=True)
signal.pause()
"""


def started(make_world: Callable[..., World], zygote: Path, way: str) -> tuple[World, Path]:
    world = make_world(zygote, ranks=2)
    path = world.folder / "go-on"
    world.start(["python", world.script(RANK), way, str(path)])
    world.until(lambda: world.log().count("trains") == 2)
    world.operator.wait_for(lambda: len(world.rank_pids()) == 2 and all(world.rank_pids().values()), "two ranks")
    return world, path


def test_the_next_round_chooses_where_to_resume_once_survivors_have_saved(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world, path = started(make_world, machine_zygote, "saves")
    survivor = world.rank_pid(0)
    os.kill(world.rank_pid(1), signal.SIGKILL)
    world.until(lambda: world.log().count("waits for") == 2)
    assert "waits for 0" not in world.log()
    assert "chooses" not in world.log()
    assert Path(f"/proc/{survivor}").exists(), "it hasn't saved yet"
    path.touch()
    world.until(lambda: world.log().count("chooses") == 2)
    assert "saved" in world.log()
    world.until(lambda: not Path(f"/proc/{survivor}").exists())


@pytest.mark.parametrize("way", ["is stuck", "parks"])
def test_a_rank_that_cannot_save_or_has_done_so_holds_nobody_up(
    make_world: Callable[..., World], machine_zygote: Path, way: str
) -> None:
    world, _ = started(make_world, machine_zygote, way)
    survivor = world.rank_pid(0)
    os.kill(world.rank_pid(1), signal.SIGKILL)
    world.until(lambda: world.log().count("chooses") == 2)
    assert not Path(f"/proc/{survivor}").exists()
