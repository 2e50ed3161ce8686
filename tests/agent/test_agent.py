"""Real agents, zygotes and ranks under a fake operator; the ranks need no torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import ROOT, World
from trainmaster.contract.wire import Cause, DirectiveState, ExitCode, RankState, Recurrence

pytestmark = pytest.mark.processes

WAIT = "import time, sys; print('up', flush=True)\nwhile True: time.sleep(3600)"
USAGE_ERROR = (
    "import argparse; p = argparse.ArgumentParser('train.py'); p.add_argument('--data', required=True); p.parse_args()"
)


def _running(world: World, ranks: int = 1) -> None:
    world.operator.wait_for(
        lambda: all(a.report and sum(r.pid > 0 for r in a.report.ranks) == ranks for a in world.operator.agents),
        "ranks that run",
    )


@pytest.mark.parametrize(
    ("body", "cause", "code", "message", "signal_name"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", Cause.CRASH, -11, "killed by SIGSEGV", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", Cause.CRASH, -9, "killed by SIGKILL", "SIGKILL"),
        ("os._exit(3)", Cause.CRASH, 3, "ended with exit code 3", ""),
        ("raise ValueError('no such luck')", Cause.CRASH, 1, "ValueError: no such luck", ""),
        ("raise MemoryError('too much')", Cause.OUT_OF_MEMORY, 1, "MemoryError: too much", ""),
        ("sys.exit('words')", Cause.CRASH, 1, "ended with exit code 1; its last output: words", ""),
        (USAGE_ERROR, Cause.CRASH, 2, "ended with exit code 2: train.py: error: the following arguments are", ""),
    ],
)
def test_a_verdict_names_rank_cause_code_and_last_words(
    make_world: Callable[..., World],
    machine_zygote: Path,
    body: str,
    cause: Cause,
    code: int,
    message: str,
    signal_name: str,
) -> None:
    world = make_world(machine_zygote, ranks=2, restarts=0)
    source = "import os, signal, sys, time\nprint('hello from', os.environ['RANK'])\nif os.environ['RANK'] == '1':\n"
    world.start(["python", world.script(source + f"    {body}\ntime.sleep(3600)\n")])
    verdict = world.operator.wait_for_verdict()
    assert (verdict.rank, verdict.cause, verdict.exit_code, verdict.signal) == (1, cause, code, signal_name)
    assert message in verdict.message
    assert not verdict.cascade
    assert (verdict.recurs is Recurrence.CERTAIN) is (body == USAGE_ERROR)
    assert "hello from 1" in verdict.last_lines
    if body.startswith("raise"):
        assert verdict.traceback.startswith("Traceback (most recent call last):\n  File")
        assert "trainmaster/agent" not in verdict.traceback
    assert "[rank 1] hello from 1" in world.log()
    assert message in (world.folder / "termination-0").read_text()


ABORTS = """
import os, signal, socket, sys, time
path, rank = sys.argv[1], os.environ['RANK']
if rank == '0':
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path + '.new')
        server.listen()
        os.rename(path + '.new', path)
        peer, _ = server.accept()
        peer.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists(path):
    time.sleep(0.01)
with socket.socket(socket.AF_UNIX) as server:
    server.connect(path)
    print('[rank1]:[E1125 ProcessGroupNCCL.cpp:683] Watchdog caught collective operation timeout', flush=True)
    os.abort()
"""
"""Rank 1 ends by SIGABRT as NCCL's watchdog ends it. Rank 0, which is to blame, is killed a moment after that."""


def test_a_rank_that_was_killed_is_the_cause_although_another_one_aborted_before_it(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, ranks=2, restarts=0)
    world.start(["python", world.script(ABORTS), str(world.folder / "peer")])
    verdict = world.operator.wait_for_verdict()
    assert (verdict.rank, verdict.signal, verdict.cascade) == (0, "SIGKILL", False)
    assert "Watchdog caught collective operation timeout" in world.log()


def test_a_missing_script_is_a_configuration_error(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote, restarts=0)
    world.start(["python", "nowhere.py"])
    verdict = world.operator.wait_for_verdict()
    assert verdict.cause is Cause.CONFIG_ERROR
    assert "nowhere.py does not exist" in verdict.message


def test_a_program_that_is_no_python_runs_as_it_is(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote, ranks=2)
    world.start(["sh", "-c", "echo I am $RANK of $WORLD_SIZE"])
    assert world.wait() == 0
    assert "[rank 1] I am 1 of 2" in world.log()
    assert world.operator.state is DirectiveState.FINISH


def test_an_image_whose_torch_is_missing_or_broken_runs_scripts_all_the_same(make_world: Callable[..., World]) -> None:
    world = make_world(ranks=2)
    broken = world.folder / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libnothing.so is missing')")
    path = os.pathsep.join([str(broken.parent), str(ROOT / "trainer")])
    world.start(["python", world.script("import os; print('I am', os.environ['RANK'])")], PYTHONPATH=path)
    assert world.wait() == 0
    assert "[rank 1] I am 1" in world.log()
    assert world.log().count("libnothing.so is missing") == 2  # not imported in advance; so executed, not forked


def test_a_script_sees_what_python_would_show_it(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    world.script("value = 7", "beside.py")
    path = world.script(
        "import os, sys, beside\n"
        "print(__name__, __file__, sys.argv, sys.path[0], beside.value, sys.stdin.read() == '', os.getcwd())\n"
        "print(os.environ['TORCHELASTIC_USE_AGENT_STORE'], os.environ['LOCAL_WORLD_SIZE'])\n"
    )
    world.start(["torchrun", "--nproc-per-node", "1", path, "--flag"])
    assert world.wait() == 0
    folder = str(world.folder)
    assert f"[rank 0] __main__ {path} ['{path}', '--flag'] {folder} 7 True {folder}" in world.log()
    assert "[rank 0] True 1" in world.log()


def test_nothing_survives_an_agent_that_is_killed(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote, ranks=2)
    tree = "import subprocess, sys\nsubprocess.Popen(['sleep', '3600'], start_new_session=True)\n" + WAIT
    agent = world.start(["python", world.script(tree)])
    _running(world, 2)
    world.until(lambda: "[rank 0] up" in world.log() and "[rank 1] up" in world.log())
    assert len(world.processes()) >= 5  # and the next round's store, once the ranks have run for a second
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    world.until(lambda: not world.processes())


def test_a_rank_that_dies_takes_its_tree_along(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote, restarts=0)
    again = "    os.setsid()\n    if os.fork(): os._exit(0)\n    os.execvp('sleep', ['sleep', '3600'])\n"
    daemon = "if os.fork() == 0:\n" + again
    worker = "subprocess.Popen(['sleep', '3600'])\n"
    agent = world.start(["python", world.script("import os, subprocess\n" + daemon + worker + WAIT)])
    _running(world)
    world.until(lambda: "[rank 0] up" in world.log() and len(world.processes()) == 4)
    os.kill(world.rank_pid(0), signal.SIGKILL)
    world.operator.wait_for_verdict()
    world.until(lambda: world.processes() == [agent.pid])


def test_a_fenced_agent_ends_its_ranks_and_itself(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    world.start(["python", world.script(WAIT)])
    _running(world)
    world.operator.direct(gone=True)
    assert world.wait() == ExitCode.FENCED
    world.until(lambda: not world.processes())


HANGS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0: os.setsid()
os.write(1, b"up\\n")  # in one piece: two processes write
while True: time.sleep(3600)
"""


@pytest.mark.parametrize("told_first", ["by its kubelet", "by the operator"])
def test_the_agent_of_a_replaced_pod_kills_ranks_that_ignore_signals_and_uses_none_of_the_grace(
    make_world: Callable[..., World], machine_zygote: Path, told_first: str
) -> None:
    world = make_world(machine_zygote)
    agent = world.start(["python", world.script(HANGS)], TRAINMASTER_GRACE_S=str(24 * 3600))
    _running(world)
    world.until(lambda: world.log().count("[rank 0] up") == 2)
    if told_first == "by its kubelet":
        agent.send_signal(signal.SIGTERM)
        world.operator.wait_for(lambda: world.operator.reports[-1].draining_s is not None, "a drain report")
    world.operator.direct(gone=True)
    assert world.wait() == ExitCode.FENCED
    world.until(lambda: not world.processes())


def test_the_agent_of_a_replaced_pod_kills_its_ranks_although_no_operator_answers(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote)
    agent = world.start(["python", world.script(HANGS)], TRAINMASTER_GRACE_S=str(24 * 3600))
    _running(world)
    world.until(lambda: world.log().count("[rank 0] up") == 2)
    world.operator.direct(silent=True)
    agent.send_signal(signal.SIGTERM)
    assert world.wait() == 128 + signal.SIGTERM
    world.until(lambda: not world.processes())


def test_ranks_go_on_while_the_operator_is_away(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    world.start(["python", world.script(WAIT)])
    _running(world)
    pids = {0: world.rank_pid(0)}
    world.operator.direct(silent=True)
    world.operator.direct(silent=False)
    seen = len(world.operator.reports)
    world.operator.wait_for(lambda: len(world.operator.reports) > seen + 2, "reports after the operator's return")
    assert world.rank_pids() == pids


def test_an_older_leader_is_not_obeyed(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    world.operator.direct(epoch=5)
    world.start(["python", world.script(WAIT)])
    _running(world)
    world.operator.direct(epoch=4, state=DirectiveState.FINISH)
    seen = len(world.operator.reports)
    world.operator.wait_for(lambda: len(world.operator.reports) > seen + 3, "further reports")
    assert world.agents[0].poll() is None
    world.operator.direct(epoch=5)
    assert world.wait() == 0


def test_a_new_leader_is_joined_though_the_one_before_never_hangs_up(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote)
    world.start(["python", world.script(WAIT)])
    _running(world)
    world.operator.wait_for(lambda: len(world.operator.joins) > 1, "the join that the leader holds")
    before = len(world.operator.reports)
    world.operator.direct(deaf=1, epoch=2)
    world.operator.wait_for(lambda: world.operator.joins[-1] == 2, "a join of the new leader's")
    assert len(world.operator.reports) - before < 100, "the first report that it answers is reason enough"


def test_an_agent_tells_when_its_ranks_needn_t_import_any_more(make_world: Callable[..., World]) -> None:
    world = make_world(None, slots=2)  # the other one never comes, so nothing starts
    world.start([], TRAINMASTER_FRAMEWORK="Trainmaster", TRAINMASTER_ZYGOTE_MODULES="torch")  # not all of our loop
    world.operator.wait_for(lambda: world.operator.reports, "a report")
    assert world.operator.reports[0].warming
    world.operator.wait_for(lambda: not world.operator.reports[-1].warming, "what ranks are forked from is ready")


def test_a_hold_ends_the_ranks_and_keeps_the_agent(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote, restarts=0)
    world.start(["python", world.script(WAIT)])
    _running(world)
    world.operator.direct(state=DirectiveState.HOLD, round=2)
    world.operator.wait_for(lambda: world.operator.reports[-1].round == 0, "a report without ranks")
    world.until(lambda: len(world.processes()) == 1)
    assert world.agents[0].poll() is None


def test_a_stopped_rank_is_reported_as_stopped(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    world.start(["python", world.script(WAIT)])
    _running(world)
    os.kill(world.rank_pid(0), signal.SIGSTOP)
    world.operator.wait_for(
        lambda: world.operator.reports[-1].ranks[0].state is RankState.STOPPED, "a rank reported as stopped"
    )


def test_a_script_that_knows_no_stops_gets_sigterm(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    source = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saving')))\n" + WAIT
    world.start(["python", world.script(source)])
    _running(world)
    world.until(lambda: "[rank 0] up" in world.log())
    world.operator.direct(stop_at=50)
    world.operator.wait_for(lambda: world.operator.reports[-1].stop_ack == 50, "the stop acknowledged")
    world.operator.direct(stop_bound=True)
    assert world.wait() == 0
    assert "[rank 0] saving" in world.log()
    assert [r.nothing_saved for r in world.operator.reports if r.saved][-1:] == [True], "only the script knows"


STOPPABLE = """
import os, time
from trainmaster.contract.wire.progress_record import OBEYS_STOP, Phase, ProgressRecord
from trainmaster.contract.wire.channel import Channel
record = ProgressRecord.open(int(os.environ["TRAINMASTER_PROGRESS_FD"]))
channel = Channel.open(int(os.environ["TRAINMASTER_CHANNEL_FD"]))
p = record.read()
p.flags, p.phase = OBEYS_STOP, Phase.STEP
p.started_ns = p.rendezvous_ns = p.built_ns = p.loaded_ns = p.first_step_ns = time.monotonic_ns()
while True:
    p.step += 1
    p.beat_ns = time.monotonic_ns()
    record.write(p)
    while record.control().stop_at == p.step:
        if record.control().stop_bound:
            channel.send("saved", {"step": p.step, "kept": True})
            os._exit(90)
        time.sleep(0.001)
    time.sleep(0.01)
"""


def test_ranks_stop_together_at_a_bound_step(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote, ranks=2)
    world.start(["python", world.script(STOPPABLE)])
    step = world.operator.wait_for_step(3).ranks[0].step
    world.operator.direct(stop_at=step - 1)
    world.operator.wait_for(lambda: world.operator.reports[-1].stop_passed, "a step that was passed")
    world.operator.direct(stop_at=step + 300)
    world.operator.wait_for(lambda: world.operator.reports[-1].stop_ack == step + 300, "the stop acknowledged")
    before = len(world.operator.reports)
    world.operator.direct(stop_bound=True)
    assert world.wait() == 0
    stopped = next(r for r in world.operator.reports if r.saved)
    assert ([r.step for r in stopped.ranks], stopped.nothing_saved) == ([step + 300] * 2, False)
    assert len(world.operator.reports) - before < 300, "an answer that says nothing new is no reason for a report"


def test_a_pod_that_must_go_drains_first(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    agent = world.start(["python", world.script(STOPPABLE)])
    world.operator.wait_for_step(3)
    agent.send_signal(signal.SIGTERM)
    report = world.operator.wait_for(
        lambda: next((r for r in world.operator.reports if r.draining_s is not None), None), "a drain report"
    )
    stop = report.ranks[0].step + 200
    world.operator.direct(stop_at=stop)
    world.operator.wait_for(lambda: world.operator.reports[-1].stop_ack == stop, "the stop acknowledged")
    world.operator.direct(stop_bound=True)
    assert world.wait() in (ExitCode.OK, ExitCode.SAVED)
    assert any(r.saved for r in world.operator.reports)


def test_a_pod_without_ranks_ends_at_once(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote, slots=2)
    agent = world.start(["python", world.script(WAIT)])
    world.operator.wait_for(lambda: world.operator.reports, "a report")
    agent.send_signal(signal.SIGTERM)
    assert world.wait() == 128 + signal.SIGTERM


def test_the_token_is_sent_with_every_request(make_world: Callable[..., World], machine_zygote: Path) -> None:
    world = make_world(machine_zygote)
    world.start(["true"])
    assert world.wait() == 0
    assert set(world.operator.tokens) == {"Bearer secret"}
