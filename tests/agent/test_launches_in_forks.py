"""A program that launches its ranks itself does so in each round. A fork of it is no exception: no rank gets a world of
its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import World
from tests.launch import stand_in_launchers
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.contract.wire.channel import Channel
from trainmaster.rank import executed_rank_observation

pytestmark = pytest.mark.processes

TRAINER = Path(__file__).parents[2] / "trainer"
WAY = """
import os, sys

with open("/proc/self/cmdline") as line:
    way = "executed" if "executed_rank" in line.read() else "forked"
print("round", os.environ["TRAINMASTER_ROUND"], "launches", way, flush=True)
LINE = ["--nproc-per-node=2", os.path.abspath("train.py")]
"""
IN_PROCESS = """
sys.path.insert(0, os.path.abspath("packages"))
from torch.distributed.run import main
sys.argv[1:] = LINE
main()
"""
BY_SUBPROCESS = """
import subprocess
path = os.pathsep.join([os.path.abspath("packages"), os.environ["PYTHONPATH"]])
argv = [sys.executable, "-m", "torch.distributed.run", *LINE]
sys.exit(subprocess.call(argv, env={**os.environ, "PYTHONPATH": path}))
"""
TRAIN = """
import os, signal
print("round", os.environ["TRAINMASTER_ROUND"], "trains as", os.environ["RANK"], flush=True)
signal.pause()
"""


@pytest.mark.parametrize("launch", [IN_PROCESS, BY_SUBPROCESS], ids=["in its process", "by a subprocess"])
def test_a_program_that_launches_its_ranks_does_not_start_another_world_after_a_killed_rank(
    make_world: Callable[..., World], launch: str
) -> None:
    world = make_world(ranks=2)
    stand_in_launchers.write(world.folder / "packages")
    world.script(TRAIN)
    program = world.script(WAY + launch, "launch.py")
    world.start(["python", program], **world.zygote_without_torch())
    world.until(lambda: all(f"round 1 trains as {rank}" in world.log() for rank in (0, 1)))
    world.until(lambda: "ranks are forked from now on" in world.log())
    os.kill(world.rank_pid(1), signal.SIGKILL)
    world.until(lambda: world.log().count("round 2 trains") == 2 or "a world of its own" in world.log())
    assert world.log().count("round 1 launches executed") == world.log().count("round 2 launches forked") == 2
    assert all(f"round 2 trains as {rank}" in world.log() for rank in (0, 1)), world.log()


def test_a_python_below_a_fork_does_not_take_itself_for_the_rank(tmp_path: Path) -> None:
    stand_in_launchers.write(tmp_path)
    child = "import torch, trainmaster.rank.script_observer as o; print('observed:', o._observer is not None)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    record = ProgressRecord.create(1, 0)
    ours, theirs = Channel.pair()
    env = {environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(theirs.fileno())}
    env |= {environment.ROUND: "1", "RANK": "0", "PYTHONPATH": f"{tmp_path}:{TRAINER}"}
    fork = (
        f"import os; from trainmaster.agent.zygote import child_setup; os.environ.update({_injected(env)!r}); "
        f"child_setup.run({ {'kind': 'code', 'code': code, 'args': []}!r})"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", fork],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TRAINER)},
            pass_fds=(record.fd, theirs.fileno()),
            text=True,
            capture_output=True,
        )
        assert done.stdout == "observed: False\n", done.stderr
    finally:
        record.close()
        ours.close()
        theirs.close()


def _injected(env: dict[str, str]) -> dict[str, str]:
    """The variables of a rank of a script."""
    return {**env, **executed_rank_observation.variables(env)}
