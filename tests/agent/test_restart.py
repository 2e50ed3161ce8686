"""An unmodified torchrun script under DDP: killed, restarted in place from the learned zygote, with a fresh store."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import DDP_SCRIPT, UNCOMPILED, World
from trainmaster.contract.wire import Cause, DirectiveState, ExitCode
from trainmaster.host.own_package import code_of_call
from trainmaster.host.processes import children

pytestmark = pytest.mark.processes

EXECUTED = code_of_call("trainmaster.rank.executed_rank", "main").rpartition("; ")[2]
"""In the command line of a rank that was executed, and of no fork."""


def test_a_killed_ddp_script_restarts_in_place_from_the_learned_zygote(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, slots=1, ranks=2)
    operator = world.operator
    checkpoint = world.folder / "checkpoint.pt"
    world.script(UNCOMPILED.read_text(), "uncompiled.py")
    # A variable of its own: what this machine's zygote learned, or gave up, for other tests' ranks is not for these.
    agent = world.start(
        ["torchrun", "--nproc-per-node=2", world.script(DDP_SCRIPT), str(checkpoint), "1000000", "0.01"],
        ONLY_HERE=world.mark,
    )
    operator.wait_for_step(6, round=1)
    world.until(lambda: "ranks are forked from now on" in world.log())
    first_store = operator.store

    os.kill(world.rank_pid(1), signal.SIGKILL)
    report = operator.wait_for_step(6, round=2)
    verdict = operator.verdicts[0]
    assert (verdict.rank, verdict.cause, verdict.signal) == (1, Cause.CRASH, "SIGKILL")
    assert operator.store != first_store
    assert world.log().count("resumed at") == 2
    assert set(report.clock) == {"drain", "fork", "imports", "rendezvous", "build", "load", "first_step"}
    for pid in world.rank_pids().values():
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{_pristine_of(pid)}/cmdline").read_bytes()

    os.kill(world.rank_pid(0), signal.SIGKILL)
    operator.wait_for_step(3, round=3)
    assert operator.verdicts[1].rank == 0
    assert agent.poll() is None
    operator.direct(state=DirectiveState.FINISH)
    assert world.wait() == ExitCode.OK
    world.until(lambda: not world.processes())


def _pristine_of(pid: int) -> int:
    """The parent of a rank: a zygote when it was forked and not executed."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def test_a_script_that_changes_a_variable_of_torch_before_torch_is_never_forked(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote)
    source = (
        "import os, time\nos.environ['TORCH_LOGS'] = '-all'\nimport torch\n"
        "p = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([p], lr=0.1)\n"
        "for _ in range(5): p.sum().backward(); o.step()\ntime.sleep(3600)\n"
    )
    world.start(["python", world.script(source)])
    world.operator.wait_for_step(5, round=1)
    world.operator.wait_for(
        lambda: any("changes a variable that torch may read" in e["message"] for e in world.operator.events),
        "the reason",
    )


LIBRARY_SCRIPT = """
import os, signal, sys
before = "transformers.models.gpt2.modeling_gpt2" in sys.modules
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=8, vocab_size=16))
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.arange(8)[None]
for _ in range(4):
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
print("round", os.environ["TRAINMASTER_ROUND"], "has it" if before else "imports it", flush=True)
signal.pause()
"""


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_script_of_a_library_that_imports_much_is_forked(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    """It takes long: the rank and the zygote import transformers once each."""
    world = make_world(machine_zygote)
    world.start(["python", world.script(LIBRARY_SCRIPT)], ONLY_HERE=world.mark)
    world.until(lambda: "[rank 0] round 1 imports it" in world.log())
    world.until(lambda: "ranks are forked from now on" in world.log())
    os.kill(world.rank_pid(0), signal.SIGKILL)
    world.until(lambda: "[rank 0] round 2 has it" in world.log())


LIGHT_SCRIPT = """
import sys
before = {"pyarrow", "sklearn"} & set(sys.modules)
import os, signal, sklearn, pyarrow
with open("/proc/self/cmdline") as line:
    way = "executed" if "EXECUTED" in line.read() else "forked"
print("round", os.environ["TRAINMASTER_ROUND"], way, sorted(before), os.environ["KMP_INIT_AT_FORK"], flush=True)
signal.pause()
""".replace("EXECUTED", EXECUTED)
SMALL_SCRIPT = LIGHT_SCRIPT.replace("sklearn", "threadpoolctl").replace("KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK")
"""The same with a module of scikit-learn that sets such a variable too, and takes a hundredth of its time to import."""


def test_a_script_that_takes_no_steps_is_forked_with_what_it_imports(make_world: Callable[..., World]) -> None:
    """scikit-learn sets variables that are read at load, pyarrow starts a thread: neither stands in the way."""
    world = make_world(ranks=2)
    world.start(["python", world.script(LIGHT_SCRIPT)], **world.zygote_without_torch())
    world.until(lambda: "[rank 1] round 1 executed [] FALSE" in world.log())
    world.until(lambda: "ranks are forked from now on" in world.log())
    seen = len(world.operator.reports)
    world.operator.wait_for(lambda: len(world.operator.reports) > seen + 1, "further reports")
    assert world.operator.events == [], "how ranks are started is for the log of the pod"
    os.kill(world.rank_pid(1), signal.SIGKILL)
    world.until(lambda: "[rank 0] round 2 forked ['pyarrow', 'sklearn'] FALSE" in world.log())
    assert "advance" not in world.log()


def test_ranks_with_a_variable_that_the_zygote_of_the_machine_lacks_are_forked_from_one_of_their_pod(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote)
    other = {"TORCH_SHOW_CPP_STACKTRACES": "0", **world.zygote_without_torch()}
    world.start(["python", world.script(SMALL_SCRIPT)], **other)
    world.until(lambda: "[rank 0] round 1 executed" in world.log())
    world.until(lambda: "ranks are forked from now on" in world.log())
    assert "it was started with another TORCH_SHOW_CPP_STACKTRACES" in world.log()
    os.kill(world.rank_pid(0), signal.SIGKILL)
    world.until(lambda: "[rank 0] round 2 forked" in world.log())


def test_the_time_that_a_script_takes_for_its_imports_is_told_as_that(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.script("import time\ntime.sleep(0.3)\n", "slow.py")
    script = world.script("import signal, slow\nprint('imported', flush=True)\nsignal.pause()\n")
    world.start(["python", script], **world.without_torch())
    operator = world.operator
    world.until(lambda: "[rank 0] imported" in world.log())
    known = len(operator.reports)
    operator.wait_for(lambda: len(operator.reports) >= known + 2, "a report from after the imports")
    assert operator.reports[-1].clock["imports"] >= 0.3


def test_a_script_that_imports_nothing_is_forked_too(make_world: Callable[..., World]) -> None:
    world = make_world()
    script = "import os, signal\nprint('round', os.environ['TRAINMASTER_ROUND'], flush=True)\nsignal.pause()\n"
    world.start(["python", world.script(script)], **world.zygote_without_torch())
    operator = world.operator
    world.until(lambda: "ranks are forked from now on" in world.log())
    first = world.rank_pid(0)
    os.kill(first, signal.SIGKILL)
    world.until(lambda: "[rank 0] round 2" in world.log())
    operator.wait_for(lambda: world.rank_pids()[0] not in (0, first), "a rank of round 2")
    assert EXECUTED not in Path(f"/proc/{world.rank_pids()[0]}/cmdline").read_text()


def test_the_store_of_a_round_outlives_its_ranks_and_its_loss_is_told(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, restarts=0)
    world.start(["python", world.script("import signal\nsignal.pause()\n")])
    operator = world.operator
    operator.wait_for(lambda: operator.reports and operator.reports[-1].round == 1, "round 1")
    store = _listener(operator.store.port)
    operator.wait_for(lambda: operator.reports[-1].ranks[0].pid, "a rank")
    os.kill(world.rank_pid(0), signal.SIGKILL)
    operator.wait_for_verdict()
    assert not operator.reports[-1].store_lost
    os.kill(store, signal.SIGKILL)
    operator.wait_for(lambda: operator.reports[-1].store_lost, "the loss of the store")


HOLDER = """
import os, signal, socket, sys, time
from trainmaster.contract.wire import Progress, ProgressRecord
record = ProgressRecord.open(int(os.environ["TRAINMASTER_PROGRESS_FD"]))
round, rank, path = int(os.environ["TRAINMASTER_ROUND"]), int(os.environ["RANK"]), sys.argv[1]
now = time.monotonic_ns()
if round == 2 and rank == 0:
    with open(path) as file:
        print("the holder", "is still there" if os.path.exists("/proc/" + file.read()) else "has gone", flush=True)
    socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 60).close()
    print("the store answers", flush=True)
if rank == 0:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
record.write(Progress(round=round, rank=rank, device_bytes=1 << 30, step=round, beat_ns=now, first_step_ns=now))
signal.pause()
"""


def test_the_store_of_a_round_that_waited_for_memory_of_a_device_answers(make_world: Callable[..., World]) -> None:
    world = make_world(ranks=2)
    operator = world.operator
    world.start(["python", world.script(HOLDER), str(world.folder / "holder")], **world.without_torch())
    operator.wait_for_step(1, round=1)
    os.kill(world.rank_pid(1), signal.SIGKILL)
    operator.wait_for_step(2, round=2)
    assert "the holder has gone" in world.log()
    assert "the store answers" in world.log()
    assert len(operator.verdicts) == 1


def _listener(port: int) -> int:
    """The pid that listens on a TCP port of this machine."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(fd) in inodes:
                return int(fd.parts[2])
        except OSError:
            continue
    raise AssertionError(f"nobody listens on port {port}")


def test_a_pod_survives_the_death_of_its_zygote_and_leaves_nothing_behind(make_world: Callable[..., World]) -> None:
    world = make_world()
    script = world.script("import os, signal\nprint('round', os.environ['TRAINMASTER_ROUND'])\nsignal.pause()\n")
    agent = world.start(["python", script], **world.without_torch())
    world.until(lambda: "[rank 0] round 1" in world.log())
    (zygote,) = children(agent.pid)
    os.kill(zygote, signal.SIGKILL)
    assert "zygote ended" in world.operator.wait_for_verdict().message
    world.until(lambda: "[rank 0] round 2" in world.log())
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    world.until(lambda: not world.processes())


def test_the_rank_that_was_killed_is_blamed_when_its_peer_in_another_pod_speaks_first(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, slots=2, restarts=0)
    source = (
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.barrier(); print('both are there', flush=True)\n"
        "while True: dist.all_reduce(torch.ones(2))\n"  # no optimizer: the first one imports torch's compiler
    )
    for slot in range(2):
        world.start(["python", world.script(source)], slot)
    world.until(lambda: "both are there" in world.log(0) and "both are there" in world.log(1))
    world.operator.wait_for(lambda: all(world.rank_pids().get(rank) for rank in range(2)), "reports of both ranks")
    os.kill(world.rank_pid(1), signal.SIGKILL)
    assert world.operator.wait_for_verdict().rank == 1
    cascade = world.operator.wait_for(
        lambda: next((r.verdict for r in world.operator.reports if r.verdict and r.verdict.rank == 0), None),
        "the verdict of the survivor",
    )
    assert cascade.cascade


def test_of_ten_ranks_that_lost_their_peer_none_is_blamed(make_world: Callable[..., World]) -> None:
    """They speak before the one that died does anything, as survivors of a killed rank may."""
    world = make_world(slots=1, ranks=11, restarts=0)
    source = (
        "import os, signal, time\nfrom pathlib import Path\nrank = os.environ['RANK']\n"
        "if rank != '7':\n"
        "    Path(f'lost-{rank}').touch()\n"
        "    raise RuntimeError('[gloo/transport/tcp/pair.cc:545] Connection closed by peer')\n"
        "while len(list(Path().glob('lost-*'))) < 10: time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    world.start(["python", world.script(source)], **world.without_torch())
    operator = world.operator
    report = operator.wait_for(
        lambda: next((r for r in operator.reports if r.ranks and all(k.exit_code is not None for k in r.ranks)), None),
        "the end of all ranks",
    )
    assert sum(rank.exit_code == ExitCode.PEER_LOST for rank in report.ranks) == 10
    assert report.verdict is not None
    assert (report.verdict.rank, report.verdict.signal, report.verdict.cascade) == (7, "SIGKILL", False)


def replace_pod_1(world: World, *command: str, **env: str) -> None:
    """Kill the agent of slot 1 with its ranks, let the round end, and start another agent there: it begins with round
    2."""
    world.agents[1].kill()
    world.wait(1)
    with world.operator.changed:
        world.operator.agents[1].joined = False
    os.kill(world.rank_pid(0), signal.SIGKILL)
    world.operator.wait_for_verdict(1)
    world.start(list(command), slot=1, **env)


def test_the_first_rank_of_a_new_pod_is_forked_with_the_imports_that_another_agent_knows(
    make_world: Callable[..., World],
) -> None:
    world = make_world(slots=2)
    env = world.zygote_without_torch()
    command = ["python", world.script(SMALL_SCRIPT)]
    for slot in range(2):
        world.start(command, slot=slot, **env)
    for index in range(2):
        world.until(lambda index=index: "ranks are forked from now on" in world.log(index))  # type: ignore[misc]
    replace_pod_1(world, *command, **env)
    world.until(lambda: "[rank 1] round 2 " in world.log(2))
    assert "[rank 1] round 2 forked ['pyarrow', 'threadpoolctl'] True" in world.log(2)
    assert "[rank 0] round 2 forked ['pyarrow', 'threadpoolctl'] True" in world.log(0)
    assert world.operator.events == []


def test_the_first_rank_of_a_new_pod_is_executed_when_no_other_agent_knows_its_imports(
    make_world: Callable[..., World],
) -> None:
    world = make_world(slots=2)
    env = world.zygote_without_torch()
    command = ["python", world.script(SMALL_SCRIPT)]
    for slot in range(2):
        world.start(command, slot=slot, **env, **({"TRAINMASTER_ZYGOTE_ENABLED": "0"} if slot == 0 else {}))
    world.until(lambda: "[rank 1] round 1 executed" in world.log(1) and "[rank 0] round 1 executed" in world.log(0))
    replace_pod_1(world, *command, **env)
    world.until(lambda: "[rank 1] round 2 " in world.log(2))
    assert "[rank 1] round 2 executed [] True" in world.log(2)
