"""Faults on purpose that are asked of an agent while it runs: over its own socket, by whoever may enter its pod."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.fake_operator import Operator
from tests.agent.world import ROOT, World
from trainmaster.contract.wire import Cause
from trainmaster.contract.wire import fault_protocol as wire
from trainmaster.rank import injected_faults

pytestmark = pytest.mark.processes

STEPPING = """
import sys, time
from trainmaster.rank import injected_faults as faults
for step in range(1, int(sys.argv[1]) + 1):
    faults.at_step(step)
    time.sleep(0.01)
"""
OPTIMIZING = """
import time, torch, uncompiled
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
while True:
    optimizer.step()
    time.sleep(0.01)
"""


def ask(world: World, text: str, slot: int = 0) -> subprocess.CompletedProcess[str]:
    """As `kubectl exec` would: a process with the pod's environment."""
    (fault,) = json.loads(injected_faults.encode([injected_faults.parse(text, now=True)]))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "trainer"),
        "TMPDIR": str(world.folder),
        "TRAINMASTER_POD_UID": f"pod-{slot}",
    }
    command = [sys.executable, "-m", "trainmaster.agent", "fault", json.dumps(fault)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def operator(world: World) -> Operator:
    return world.operator


@pytest.fixture
def running(world: World, operator: Operator) -> World:
    world.start([sys.executable, world.script(STEPPING), "100000"], **world.without_torch())
    operator.wait_for(lambda: world.rank_pids().get(0), "a rank")
    return world


def test_a_rank_is_killed_at_once(running: World, operator: Operator) -> None:
    done = ask(running, "kill:rank=0")
    assert (done.returncode, done.stdout) == (0, "SIGKILL was sent to rank 0\n")
    verdict = operator.wait_for_verdict()
    assert (verdict.rank, verdict.signal) == (0, "SIGKILL")


def test_a_rank_does_in_its_next_step_what_only_it_can_do(running: World, operator: Operator) -> None:
    assert ask(running, "exit:rank=0,code=7").stdout == "rank 0 does it in its next step\n"
    assert operator.wait_for_verdict().exit_code == 7
    operator.wait_for(lambda: operator.reports[-1].round == 2 and operator.reports[-1].ranks, "the next round")
    assert len(operator.verdicts) == 1  # once, although the next round takes the same steps


def test_a_fault_waits_for_its_step(running: World, operator: Operator) -> None:
    # Four seconds away: the command that asks for it has to start first, also on a busy machine.
    assert ask(running, "raise:rank=0,step=400").returncode == 0
    assert "fault raise:rank=0,step=400 was asked for" in operator.wait_for_verdict().message
    assert "fires on rank 0 in step 400" in running.log()


def test_a_script_that_knows_nothing_of_faults_has_them_too(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote)
    operator = world.operator
    world.script((ROOT / "tests" / "e2e" / "scripts" / "uncompiled.py").read_text(), "uncompiled.py")
    world.start([sys.executable, world.script(OPTIMIZING)])
    operator.wait_for_step(1)
    assert ask(world, "oom:rank=0").returncode == 0
    assert operator.wait_for_verdict().cause is Cause.OUT_OF_MEMORY


def test_what_is_not_here_is_refused_in_words(running: World) -> None:
    done = ask(running, "kill:rank=5")
    assert (done.returncode, done.stderr) == (1, "rank 5 doesn't run in this pod now\n")


def test_the_store_of_the_round_can_be_lost(running: World, operator: Operator) -> None:
    assert ask(running, "lose-store:rank=0").returncode == 0
    operator.wait_for(lambda: any(r.store_lost for r in operator.reports), "the loss of the store")


def test_an_agent_that_is_cut_off_comes_back(running: World, operator: Operator) -> None:
    assert ask(running, "partition:rank=0,seconds=0.5").returncode == 0
    heard = len(operator.reports)
    operator.wait_for(lambda: len(operator.reports) > heard + 3, "reports after it")
    assert operator.round == 1


def test_an_agent_can_be_killed_alone(running: World) -> None:
    assert ask(running, "kill-agent:rank=0").stdout == "this agent dies now\n"
    assert running.wait() == -signal.SIGKILL


def test_nobody_but_the_owner_may_ask(running: World) -> None:
    folder = running.folder / "trainmaster-pod-0"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / wire.SOCKET).stat().st_mode) == 0o600


def test_an_agent_that_cannot_open_its_socket_trains_all_the_same(world: World, operator: Operator) -> None:
    (world.folder / "trainmaster-pod-0").mkdir(mode=0o755)
    world.start([sys.executable, world.script(STEPPING), "5"], **world.without_torch())
    assert world.wait() == 0
    assert "no faults can be injected here" in world.log()


def test_without_an_agent_there_is_a_sentence(world: World, tmp_path: Path) -> None:
    done = ask(world, "kill:rank=0", slot=7)
    assert done.returncode == 1
    assert "no agent answers on" in done.stderr
