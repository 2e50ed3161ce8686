"""A test run that is killed leaves no agent behind, and nothing that its agents started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tied
from tests.agent.fake_operator import WAIT_S
from tests.agent.world import ROOT, marked

TEST_RUN = """
import os, signal, sys, traceback
from pathlib import Path
from tests.agent.fake_operator import Operator
from tests.agent.world import World

world = World(Operator(), Path(sys.argv[1]))
try:
    world.start(["sleep", "3600"], **world.without_torch())
    world.operator.wait_for(lambda: world.rank_pids().get(0), "a rank")
except BaseException:
    traceback.print_exc()
    os._exit(1)  # threads of the operator would keep the process alive
print(world.mark, world.rank_pids()[0], flush=True)
signal.pause()
"""


def wait_for(mark: str, is_met: Callable[[list[int]], bool]) -> None:
    """Wait until the living processes of a world are as expected."""
    deadline = time.monotonic() + WAIT_S
    while not is_met(living := marked(mark)):
        assert time.monotonic() < deadline, living
        time.sleep(0.02)


@pytest.mark.processes
def test_agents_and_ranks_end_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "trainer"), str(ROOT / "operator")])
    command = [sys.executable, "-c", TEST_RUN, str(tmp_path)]
    with tied.popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            mark, rank = run.stdout.readline().split()
            # While the kernel replaces a program by another, it tells no environment of the process.
            wait_for(mark, lambda living: int(rank) in living)
        finally:
            run.kill()  # also when something above fails: leaving this block waits for its end
    wait_for(mark, lambda living: not living)
