"""Who runs the script of the goodput benchmark: Trainmaster, torchrun, and a shell loop, behind one interface.

A runner starts a job of one pod with all its ranks, kills that pod on request, and says when the job has ended. What
strikes a single rank needs no runner: its pid is in the job's folder. Another system is another `Runner`.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from benchmarks import commands
from benchmarks.ports import free_port
from trainmaster.contract.wire import environment
from trainmaster_operator.local import process_tree

LOOP = Path(__file__).with_name("goodput_loop.sh")
AGAIN = ["bash", "-c", 'until "$@"; do :; done', "again"]
"""The part of a kubelet for those who have none: whatever ends with an error is started again, at once."""
ENDLESS = 1000  # restarts, of which none is to be the last


@dataclass(frozen=True)
class Work:
    """What is run. `script`: its words, without the program that starts it; it resumes from what is in `folder`."""

    script: tuple[str, ...]
    ranks: int
    folder: Path


class Runner(Protocol):
    """One job, from its start to its end."""

    name: str

    def start(self, work: Work) -> None: ...

    def kill_pod(self) -> None:
        """SIGKILL to all processes of the pod, the one that watches over the ranks included."""

    def ended(self) -> int | None:
        """The exit code once the job has ended, or None."""

    def stop(self) -> None:
        """End whatever still runs of it."""


class CommandRunner:
    """A runner by one command, below which all processes of the job are."""

    def __init__(
        self,
        name: str,
        command: Callable[[Work], list[str]],
        pod: Callable[[int], Sequence[int]],
        variables: dict[str, str] | None = None,
        *,
        ends_its_own: bool = False,
    ) -> None:
        """command: for a job. pod: the pids of the job's pod, by the pid of the command. ends_its_own: told to end, the
        command ends all that it has started."""
        self.name, self._ends_its_own = name, ends_its_own
        self._command, self._pod, self._variables = command, pod, variables or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, work: Work) -> None:
        variables = {"OMP_NUM_THREADS": "1", **self._variables}
        self._process = commands.popen(self._command(work), variables, work.folder / "output")

    def kill_pod(self) -> None:
        assert self._process is not None
        for pid in self._pod(self._process.pid):
            process_tree.kill(pid)

    def ended(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None and self._ends_its_own:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(commands.ENDS_S)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)  # it must start nobody while those below it are killed
            process_tree.kill_all(lambda table: process_tree.below([process.pid], table))
            process.kill()
        process.wait()


def below(pid: int) -> list[int]:
    """Return all processes below the one that starts the pod again."""
    return [process.pid for process in process_tree.below([pid], process_tree.table())]


def agents_pod(pid: int) -> list[int]:
    """Return the agents below a `trainmaster run`, and all processes of their groups. Ranks die with their agent."""
    table = process_tree.table()
    agents = {
        process.group
        for process in process_tree.below([pid], table)
        if process.pid == process.session and _is_agent(process.pid)
    }
    return [process.pid for process in table.values() if process.group in agents]


def _is_agent(pid: int) -> bool:
    try:
        return f"\0{environment.POD_UID}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has just ended


def trainmaster_command(work: Work) -> list[str]:
    """`trainmaster run` of one pod with all ranks, whose budget for restarts isn't what is measured."""
    job = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "goodput"},
        "spec": {
            "framework": "PyTorch",
            "workers": {
                "replicas": 1,
                "ranksPerPod": work.ranks,
                "template": {"spec": {"containers": [{"name": "worker", "command": ["python", *work.script]}]}},
            },
            "recovery": {"budget": dict.fromkeys(("inPlace", "pod", "full", "perCause"), ENDLESS)},
        },
    }
    path = work.folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(path), "--plain"]
    return [*command, "--out", str(work.folder / "out")]


def torchrun_command(work: Work) -> list[str]:
    """torchrun with restarts of its own, below a loop that starts it again when its pod was killed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += [f"--nproc-per-node={work.ranks}", f"--max-restarts={ENDLESS}"]
    return [*AGAIN, *torchrun, *work.script]


def loop_command(work: Work) -> list[str]:
    """All ranks from the shell, and all of them again when one fails."""
    port = free_port()
    return [*AGAIN, str(LOOP), str(work.ranks), str(port), sys.executable, *work.script]


TRAINMASTER, TORCHRUN, SHELL_LOOP = "Trainmaster", "torchrun", "shell loop"


def make(name: str) -> Runner:
    """Return a new runner of this name."""
    if name == TRAINMASTER:
        return CommandRunner(name, trainmaster_command, agents_pod, ends_its_own=True)
    if name == TORCHRUN:
        # At its best: with a shared store gloo meets addresses of ranks that are gone, and restarts mostly fail.
        return CommandRunner(name, torchrun_command, below, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    return CommandRunner(name, loop_command, below)


NAMES = (TRAINMASTER, TORCHRUN, SHELL_LOOP)
