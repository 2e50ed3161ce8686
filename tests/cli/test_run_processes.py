"""Whole runs with real processes: they stop when asked, resume, and leave nothing behind, whatever ends them."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.ports import free_port
from tests import tied
from tests.cli.conftest import WriteJob
from tests.e2e import harness
from tests.e2e.harness import Command
from tests.e2e.warm import COMMAND
from tests.stored import flat_status
from trainmaster.contract.wire import environment
from trainmaster_operator.local import process_tree

pytestmark = pytest.mark.processes

ENDS_WITHIN_S = 10.0  # what we promise of every run, whatever ends it
HANGS_AFTER_S = 150.0

SMALL = {
    "spec__workers": {"replicas": 2},
    "spec__training__model": {"options": {"layers": 1, "heads": 1, "width": 16, "context": 16}},
    "spec__training__parallelism": {},
    "spec__training__device": "CPU",
    "spec__checkpoint": {"every": 10},
}


class Run:
    """A `trainmaster run` with a folder of its own for temporary files, so that we see what it leaves."""

    def __init__(
        self, job: Path, out: Path, temporary: Path, *arguments: str, warm: bool = False, **variables: str
    ) -> None:
        """`warm`: the command, its operator and its kubelet are forked, and not executed as users do."""
        self.out = out
        self.temporary = temporary
        words = ["run", str(job), "--out", str(out), *arguments]
        all_variables = {**os.environ, "TMPDIR": str(temporary), **variables}
        self.process: Command
        if warm:
            assert harness.interpreter is not None, "the fixture warm_runs sets it"
            self.process = harness.interpreter.start(words, all_variables)
        else:
            self.process = tied.popen(
                [sys.executable, "-m", COMMAND, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                bufsize=1,
                env=all_variables,
                start_new_session=True,
            )
        self.lines: list[str] = []

    def wait_for(self, word: str) -> str:
        """The first line of news of that kind; fails when the run ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line[9:].startswith(word):
                return line
        pytest.fail(f"the run ended without {word!r}:\n{self.output}")

    def end(self) -> int:
        output, _ = self.process.communicate(timeout=HANGS_AFTER_S)
        self.lines.append(output)
        return self.process.wait()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def resource(self) -> dict[str, Any]:
        resource: dict[str, Any] = yaml.safe_load((self.out / "status.yaml").read_text())
        return {**resource, "status": flat_status(resource["status"])}

    def tree(self) -> list[int]:
        """A descriptor for every process below the command, which becomes readable when that one ends."""
        found = process_tree.below([self.process.pid], process_tree.table())
        descriptors = []
        for process in found:
            try:
                descriptors.append(os.pidfd_open(process.pid))
            except ProcessLookupError:
                continue
        return descriptors

    def kill(self) -> None:
        """Whatever is left, when a test has failed."""
        for process in process_tree.below([self.process.pid], process_tree.table()):
            process_tree.kill(process.pid)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def all_end(descriptors: list[int]) -> bool:
    """Waits for the end of all these processes, as long as they may take."""
    waiting = set(descriptors)
    poller = select.poll()
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    give_up_at = time.monotonic() + ENDS_WITHIN_S
    while waiting and (left := give_up_at - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left * 1000):
            poller.unregister(descriptor)
            waiting.discard(descriptor)
    for descriptor in descriptors:
        os.close(descriptor)
    return not waiting


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Short, since sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(tmp_path: Path, temporary: Path, write_job: WriteJob) -> Iterator[Any]:
    runs: list[Run] = []

    def begin(*arguments: str, steps: int = 100_000, warm: bool = False, **variables: str) -> Run:
        job = write_job(**SMALL, spec__training__steps=steps)
        runs.append(Run(job, tmp_path / "out", temporary, *arguments, warm=warm, **variables))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


def nothing_is_left(temporary: Path, port: int) -> bool:
    """No folder of the run, and its port can be taken again."""
    with socket.create_server(("127.0.0.1", port)):
        pass
    return os.listdir(temporary) == []


def test_nothing_survives_a_command_that_is_killed(start: Any, temporary: Path) -> None:
    port = free_port()
    run = start("--port", str(port))
    run.wait_for("running")
    tree = run.tree()
    assert len(tree) >= 6, "operator, kubelet, zygote, two agents, two ranks, perhaps a store"
    named = set()
    for process in process_tree.below([run.process.pid], process_tree.table()):
        named |= set(re.findall(r"/dev/shm/[^/\s]+", Path(f"/proc/{process.pid}/maps").read_text()))
    assert all(folder.startswith("/dev/shm/trainmaster-ram-") for folder in named), "other shared memory can outlive us"
    run.process.kill()
    assert all_end(tree)
    assert not any(map(os.path.exists, named))
    assert nothing_is_left(temporary, port)
    assert run.resource["metadata"]["name"] == "tiny", "the next run can go on from there"


def test_nothing_survives_a_kubelet_that_is_killed(start: Any, temporary: Path) -> None:
    port = free_port()
    run = start("--port", str(port))
    run.wait_for("pending")
    while not (kubelets := [p for p in run_tree(run) if b"local.process_kubelet" in command_line(p)]):
        assert run.process.poll() is None
        os.sched_yield()
    tree = run.tree()
    os.kill(kubelets[0], signal.SIGKILL)
    assert run.end() == 1
    assert "trainmaster: the kubelet ended with -9" in run.output
    assert "Traceback" not in run.output
    assert all_end(tree)
    assert nothing_is_left(temporary, port)


def test_a_run_that_was_asked_to_stop_has_saved_and_goes_on_where_it_was(
    start: Any, temporary: Path, machine_zygote: Path, warm_runs: None
) -> None:
    shared = {"warm": True, environment.ZYGOTE: str(machine_zygote)}
    first = start(**shared)
    first.wait_for("running")
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130, first.output
    assert os.listdir(temporary) == []
    left = first.resource
    assert left["status"]["phase"] == "Suspended"
    saved = left["status"]["checkpoint"]["step"]
    assert saved == left["status"]["progress"]["step"] > 0

    second = start(steps=saved + 30, **shared)
    second.wait_for("resumes")
    assert second.end() == 0, second.output
    done = second.resource
    assert done["status"]["phase"] == "Succeeded"
    assert done["status"]["progress"]["step"] == saved + 30
    assert done["metadata"]["uid"] == left["metadata"]["uid"]
    assert done["status"]["round"] > left["status"]["round"]
    steps = [
        line.split('"step": ')[1].split(",")[0] for line in (second.out / "metrics.jsonl").read_text().splitlines()
    ]
    assert [int(step) for step in steps] == list(range(1, saved + 31)), "no step ran twice and none is missing"
    assert (second.out / "report.html").is_file()

    third = start(steps=saved + 30, **shared)
    assert third.end() == 0
    assert "has succeeded already" in third.output


def test_the_second_ctrl_c_ends_everything_at_once(start: Any, temporary: Path) -> None:
    run = start()
    run.wait_for("pending")
    tree = run.tree()
    run.process.send_signal(signal.SIGINT)
    run.wait_for("stopping")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.output
    assert "Interrupted" in run.output
    assert all_end(tree)
    assert os.listdir(temporary) == []


def run_tree(run: Run) -> list[int]:
    return [process.pid for process in process_tree.below([run.process.pid], process_tree.table())]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
