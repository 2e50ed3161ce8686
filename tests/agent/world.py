"""Real agents on this machine for tests: started, watched and, whatever happens, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests import tied
from tests.agent.fake_operator import WAIT_S, Operator
from tests.e2e import warm
from tests.machine_zygote import environment

ROOT = Path(__file__).resolve().parents[2]

UNCOMPILED = ROOT / "tests" / "e2e" / "scripts" / "uncompiled.py"

DDP_SCRIPT = """
import os, sys, time, torch, uncompiled
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
path, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
first = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.module.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); first = saved["step"]
    print("resumed at", first)
for step in range(first + 1, steps + 1):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 100 + dist.get_rank()))
    loss = model(x).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if dist.get_rank() == 0 and step % 5 == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
    if pause: time.sleep(pause)
print("finished", step, flush=True)
dist.destroy_process_group()
"""


Agent = subprocess.Popen[bytes] | warm.WarmProcess


class World:
    """Agents of one fake operator, below `folder`. They are forked from a process that has imported the agent."""

    def __init__(self, operator: Operator, folder: Path, zygote: Path | None = None) -> None:
        self.operator = operator
        self.folder = folder
        self.zygote = zygote
        self.agents: list[Agent] = []
        self.logs: list[Path] = []
        self.mark = uuid.uuid4().hex
        (folder / "token").write_text("secret\n")

    def script(self, source: str, name: str = "train.py") -> str:
        path = self.folder / name
        path.write_text(source)
        return str(path)

    def start(self, command: list[str], slot: int = 0, **env: str) -> Agent:
        """Start an agent; `env` adds to its environment. One with modules of its own is executed."""
        log = self.folder / f"agent-{slot}-{len(self.agents)}.log"
        variables = {
            "TRAINMASTER_JOB_UID": "uid-1",
            "TRAINMASTER_NAMESPACE": "default",
            "TRAINMASTER_JOB": "job",
            "TRAINMASTER_ROLE": "worker",
            "TRAINMASTER_SLOT": str(slot),
            "TRAINMASTER_INCARNATION": "1",
            "TRAINMASTER_POD_UID": f"pod-{slot}",
            "TRAINMASTER_ONE_MACHINE": "1",
            "TRAINMASTER_OPERATOR_URL": self.operator.url,
            "TRAINMASTER_TOKEN_FILE": str(self.folder / "token"),
            "TRAINMASTER_FRAMEWORK": "PyTorch",
            "TRAINMASTER_COMMAND": json.dumps(command),
            "TRAINMASTER_TERMINATION_LOG": str(self.folder / f"termination-{slot}"),
            "TRAINMASTER_TEST_MARK": self.mark,
            "TMPDIR": str(self.folder),
            "PYTHONPATH": str(ROOT / "trainer"),
            **({"TRAINMASTER_ZYGOTE": str(self.zygote)} if self.zygote else {}),
            **env,
        }
        agent: Agent
        with open(log, "wb") as file:
            if variables["PYTHONPATH"] in (str(ROOT / "trainer"), self._path_without_torch()):
                agent = warm.shared("agent").start_agent({**environment(), **variables}, self.folder, file.fileno())
            else:
                agent = tied.popen(
                    [sys.executable, "-m", "trainmaster.agent"],
                    env={**environment(), **variables},
                    cwd=self.folder,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        self.agents.append(agent)
        self.logs.append(log)
        return agent

    def without_torch(self) -> dict[str, str]:
        """The environment of an agent that finds none: it costs nothing to start, and its stores are mere addresses."""
        return {"TRAINMASTER_ZYGOTE_ENABLED": "0", "PYTHONPATH": self._path_without_torch()}

    def zygote_without_torch(self) -> dict[str, str]:
        """The same with a zygote of its own, which learns."""
        return {"TRAINMASTER_ZYGOTE_MODULES": "json", "PYTHONPATH": self._path_without_torch()}

    def _path_without_torch(self) -> str:
        nowhere = self.folder / "no-torch"
        nowhere.mkdir(exist_ok=True)
        (nowhere / "torch.py").write_text("raise ImportError('there is no torch here')\n")
        return os.pathsep.join([str(nowhere), str(ROOT / "trainer")])

    def log(self, index: int = 0) -> str:
        return self.logs[index].read_text(errors="replace")

    def wait(self, index: int = 0) -> int:
        """The exit code of an agent."""
        return self.agents[index].wait(WAIT_S)

    def processes(self) -> list[int]:
        """All living processes that descend from this world's agents."""
        return marked(self.mark)

    def rank_pids(self) -> dict[int, int]:
        """Rank -> pid, as last reported."""
        return {r.rank: r.pid for a in self.operator.agents if a.report for r in a.report.ranks}

    def rank_pid(self, rank: int) -> int:
        """The process of a rank, once a report names it.

        A rank that isn't born yet is reported with pid 0, which os.kill() takes for this process and its whole group.
        """
        pid: int = self.operator.wait_for(lambda: self.rank_pids().get(rank), f"rank {rank} to be born")
        return pid

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that only the machine shows: a log, a list of processes."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{self.log()[-3000:]}\n{self.processes()}"
            time.sleep(0.02)

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    agent.send_signal(signal.SIGKILL)
            agent.wait(10)


def marked(mark: str) -> list[int]:
    """All living processes that have a world's mark in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2][0]
            if state != "Z" and mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found
