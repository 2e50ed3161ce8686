"""Faults on purpose: their grammar, and that each fires once, where and when it was asked for."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.contract.wire import environment
from trainmaster.contract.wire import fault_protocol as wire
from trainmaster.errors import ConfigError
from trainmaster.rank import injected_faults
from trainmaster.rank.injected_faults import Fault, InjectedFault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:rank=2,step=20", Fault("kill", step=20, rank=2)),
        ("stop:step=1", Fault("stop", step=1)),
        ("exit:code=3,step=5,rank=1", Fault("exit", step=5, rank=1, code=3)),
        ("raise:step=7", Fault("raise", step=7)),
        ("corrupt-checkpoint:step=9", Fault("corrupt-checkpoint", step=9)),
        ("kill-pod:rank=3,step=2", Fault("kill-pod", step=2, rank=3)),
        ("kill-operator:step=4", Fault("kill-operator", step=4)),
        ("slow:step=3,seconds=0.25,steps=7", Fault("slow", step=3, seconds=0.25, steps=7)),
        ("slow:step=3", Fault("slow", step=3, seconds=0.5, steps=10)),
        ("nan:rank=1,step=3", Fault("nan", step=3, rank=1)),
        ("oom:step=3", Fault("oom", step=3, where="device")),
        ("oom:step=3,where=host", Fault("oom", step=3, where="host")),
        ("corrupt-checkpoint:step=9,tier=ram", Fault("corrupt-checkpoint", step=9, tier="ram")),
        ("lose-store:step=9", Fault("lose-store", step=9)),
        ("fill-disk:step=9,seconds=3", Fault("fill-disk", step=9, seconds=3)),
        ("partition:rank=1,step=9", Fault("partition", step=9, rank=1, seconds=10)),
        ("kill-agent:step=9", Fault("kill-agent", step=9)),
        ("lose-node:step=9", Fault("lose-node", step=9)),
        ("api-outage:step=9,seconds=1.5", Fault("api-outage", step=9, seconds=1.5)),
        ("crash-operator:step=9,writes=2", Fault("crash-operator", step=9, writes=2)),
    ],
)
def test_a_fault_is_read_and_written(text: str, fault: Fault) -> None:
    assert injected_faults.parse(text) == fault
    assert injected_faults.parse(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kil:step=2", r"'kil' is unknown; did you mean kill\?"),
        ("explode:step=2", r"'explode' is unknown; known are api-outage, corrupt-checkpoint"),
        ("kill-rank:step=2", r"'kill-rank' is unknown; kill strikes a rank, for example kill:rank=1,step=20"),
        ("kill-pods:step=2", r"'kill-pods' is unknown; did you mean kill-pod\?"),
        ("kill:stepp=2", r"'stepp' is unknown; did you mean step\?"),
        ("kill:steps=2", r"steps belongs to slow, not to kill"),
        ("kill:rank=1", r"step is missing, as in kill:rank=0,step=20"),
        ("kill", r"step is missing"),
        ("kill:step=two", r"step must be a whole number, as in step=3; got 'two'"),
        ("kill:step=-2", r"step must be a whole number"),
        ("kill:step", r"step must be a whole number"),
        ("kill:step=0", r"steps are counted from 1"),
        ("kill:step=2,step=3", r"step is given twice"),
        ("kill:step=2,code=3", r"code belongs to exit, not to kill"),
        ("exit:step=2,code=256", r"code must lie between 1 and 255"),
        ("exit:step=2,code=0", r"code must lie between 1 and 255"),
        ("kill:step=2,seconds=3", r"seconds belongs to api-outage and fill-disk and partition and slow, not to kill"),
        ("slow:step=2,seconds=soon", r"seconds must be a number, as in seconds=2.5; got 'soon'"),
        ("slow:step=2,seconds=0", r"seconds must be more than 0"),
        ("crash-operator:step=2,writes=0", r"writes must be more than 0"),
        ("oom:step=2,where=moon", r"where must be device or host; got 'moon'"),
        ("oom:step=2,where", r"where must be device or host; got ''"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        injected_faults.parse(text)
    assert repr(text) in str(refusal.value)


def test_a_fault_without_a_step_is_for_now_where_that_is_possible() -> None:
    fault = injected_faults.parse("kill:rank=2", now=True)
    assert fault == Fault("kill", step=0, rank=2)
    assert str(fault) == "kill:rank=2"
    assert injected_faults.parse(str(fault), now=True) == fault


def test_encoded_faults_have_ids_of_their_own() -> None:
    given = [injected_faults.parse("kill:step=2"), injected_faults.parse("kill:step=2")]
    sent = json.loads(injected_faults.encode(given))
    assert len({fault["id"] for fault in sent}) == 2
    assert {"id", "kind", "rank", "step", "code"} <= set(sent[0])
    assert [str(fault) for fault in injected_faults.decode(injected_faults.encode(given))] == [
        str(fault) for fault in given
    ]


class Judge:
    """Who starts the run: answers on a unix socket, yes once for each fault."""

    def __init__(self, path: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self._fired: set[str] = set()
        self._server = socket.create_server(str(path), family=socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                question = json.loads(lines.readline())
                self.asked.append(question)
                go = question["fire"] not in self._fired
                self._fired.add(question["fire"])
                connection.sendall(json.dumps({"go": go}).encode() + b"\n")

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    path = tmp_path / "faults.sock"
    judge = Judge(path)
    monkeypatch.setenv(environment.FAULT_SOCKET, str(path))
    yield judge
    judge.close()


def ask_for(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    monkeypatch.setenv(environment.FAULTS, injected_faults.encode([injected_faults.parse(text) for text in texts]))


def test_a_fault_fires_once_however_often_its_step_is_replayed(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "raise:rank=1,step=3")
    with pytest.raises(InjectedFault, match="raise:rank=1,step=3"):
        injected_faults.at_step(3, 1)
    injected_faults.at_step(3, 1)
    assert len(judge.asked) == 2


def test_other_steps_and_ranks_ask_nobody(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "raise:rank=1,step=3")
    injected_faults.at_step(2, 1)
    injected_faults.at_step(3, 0)
    assert judge.asked == []


@pytest.mark.parametrize(("after", "step"), [(28, 35), (32, 33), (0, 40)])
def test_a_fault_of_a_step_that_is_jumped_over_fires_in_the_next_one_that_is_seen(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, after: int, step: int
) -> None:
    ask_for(monkeypatch, "raise:rank=1,step=33")
    with pytest.raises(InjectedFault):
        injected_faults.at_step(step, 1, after=after)
    assert [(asked["step"], asked["after"]) for asked in judge.asked] == [(step, after)]


@pytest.mark.processes
@pytest.mark.parametrize("resumed", [0, 70, -1])
def test_steps_that_a_framework_counts_in_groups_tell_the_step_before_each_group(resumed: int) -> None:
    code = f"""
import os
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.rank import injected_faults, script_observer
record = ProgressRecord.create(1, 0)
os.environ[environment.PROGRESS_FD] = str(record.fd)
script_observer.install(own_loop=False)
injected_faults.at_step = lambda step, numbers, after: print(after, step)
for step in (77, 84):
    script_observer._observer.completed(step, resumed={resumed})
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == [f"{resumed} 77", "77 84"]


@pytest.mark.parametrize(("after", "step"), [(35, 42), (33, 34), (28, 32), (-1, 40), (None, 40), (60, 40)])
def test_a_fault_of_a_step_before_or_after_a_jump_asks_nobody(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, after: int | None, step: int
) -> None:
    ask_for(monkeypatch, "raise:rank=1,step=33")
    injected_faults.at_step(step, 1, after=after)
    assert judge.asked == []


def test_the_rank_defaults_to_that_of_the_environment(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "raise:rank=2,step=3")
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(InjectedFault):
        injected_faults.at_step(3)


def test_who_decides_hears_of_the_pod_the_rank_and_the_step(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "kill-operator:rank=1,step=3")
    for name, value in ((environment.JOB, "gpt"), (environment.ROLE, "worker"), (environment.SLOT, "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(environment.INCARNATION, "0")
    injected_faults.at_step(3, 1)
    assert judge.asked == [{"fire": "fault-0", "pod": "gpt-worker-1-0", "rank": 1, "step": 3, "after": 2}]


def test_a_rank_whose_pod_is_killed_does_not_go_on(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "kill-pod:rank=1,step=3")
    monkeypatch.setattr(injected_faults, "DIES_WITHIN_S", 0.01)
    with pytest.raises(InjectedFault, match=r"this rank lives 0\.01 s after its pod was killed"):
        injected_faults.at_step(3, 1)


def test_no_answer_means_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ask_for(monkeypatch, "raise:step=3")
    monkeypatch.setenv(environment.FAULT_SOCKET, str(tmp_path / "nobody.sock"))
    injected_faults.at_step(3, 0)


def test_faults_that_nobody_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "raise:step=3")
    monkeypatch.delenv(environment.FAULT_SOCKET, raising=False)
    with pytest.raises(ConfigError, match="no process counts the faults"):
        injected_faults.at_step(3, 0)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "status"), [("kill:step=3", -signal.SIGKILL), ("exit:step=3", 1), ("exit:step=3,code=7", 7)]
)
def test_a_fault_ends_the_process_as_it_says(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, text: str, status: int
) -> None:
    ask_for(monkeypatch, text)
    code = "from trainmaster.rank import injected_faults as faults; faults.at_step(3, 0); print('alive')"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (status, "")


@pytest.mark.processes
def test_a_stopped_rank_is_there_and_silent(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "stop:step=3")
    code = "from trainmaster.rank import injected_faults as faults; faults.at_step(3, 0); print('alive')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate()[0] == "alive\n"


def checkpoint(directory: Path, name: str, complete: bool) -> Path:
    folder = directory / name
    folder.mkdir()
    (folder / "rank-00000.safetensors").write_bytes(bytes(1000))
    if complete:
        (folder / "manifest.json").write_text("{}")
    return folder / "rank-00000.safetensors"


def test_the_newest_complete_checkpoint_is_damaged_and_no_other(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = checkpoint(tmp_path, "step-9.r2", complete=True)
    newest = checkpoint(tmp_path, "step-10.r1", complete=True)
    half = checkpoint(tmp_path, "step-20.r1", complete=False)
    (tmp_path / "lineage").mkdir()
    ask_for(monkeypatch, "corrupt-checkpoint:step=3")
    monkeypatch.setenv(environment.CHECKPOINT_DIR, str(tmp_path))
    injected_faults.at_step(3, 0)
    assert newest.read_bytes() == bytes(500) + b"\xff" * 16 + bytes(484)
    assert older.read_bytes() == half.read_bytes() == bytes(1000)


def test_without_a_checkpoint_there_is_nothing_to_damage(tmp_path: Path) -> None:
    assert injected_faults.corrupt(str(tmp_path / "missing")) is None
    checkpoint(tmp_path, "step-20.r1", complete=False)
    assert injected_faults.corrupt(str(tmp_path)) is None


class Tensor:
    """As much of one as becomes NaN."""

    def __init__(self, grad: Tensor | None = None) -> None:
        self.value = 0.0
        self.grad = grad

    def fill_(self, value: float) -> None:
        self.value = value


def test_nan_comes_into_the_gradients_that_there_are(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "nan:step=3")
    trained, frozen = Tensor(Tensor()), Tensor()
    injected_faults.at_step(3, 0, lambda: injected_faults.gradients([trained, frozen]))
    assert trained.grad is not None
    assert trained.grad.value != trained.grad.value
    assert (trained.value, frozen.value) == (0.0, 0.0)


def test_a_slow_rank_is_slow_for_as_many_steps_as_asked_for(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(injected_faults.time, "sleep", slept.append)
    monkeypatch.setattr(injected_faults, "_slowness", injected_faults.Slowness())
    ask_for(monkeypatch, "slow:step=3,seconds=0.5,steps=2")
    for step in range(1, 8):
        injected_faults.at_step(step, 0)
    assert slept == [0.5, 0.5]


@pytest.mark.parametrize(("on_cuda", "device"), [(False, "CPU"), (True, "CUDA")])
def test_memory_of_the_device_runs_out_as_torch_says_it(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, on_cuda: bool, device: str
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_cuda)
    ask_for(monkeypatch, "oom:step=3")
    with pytest.raises(torch.OutOfMemoryError, match=f"^{device} out of memory"):
        injected_faults.at_step(3, 0)


@pytest.mark.processes
def test_memory_of_a_machine_that_others_use_is_not_taken(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for(monkeypatch, "oom:step=3,where=host")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    code = "from trainmaster.rank import injected_faults as faults; faults.at_step(3, 0)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.endswith("MemoryError\n")


def test_what_an_agent_laid_down_is_asked_about_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.FAULT_SOCKET, raising=False)
    monkeypatch.delenv(environment.FAULTS, raising=False)
    monkeypatch.setenv(environment.FAULT_DIR, str(tmp_path))
    injected_faults.at_step(1, 0)
    agent = Judge(tmp_path / wire.SOCKET)
    try:
        (tmp_path / wire.ARMED).write_text(injected_faults.encode([injected_faults.parse("raise:rank=0", now=True)]))
        with pytest.raises(InjectedFault):
            injected_faults.at_step(2, 0)
        injected_faults.at_step(3, 0)
    finally:
        agent.close()
    assert [question["step"] for question in agent.asked] == [2, 3]


def test_checkpoints_find_no_space_while_the_disk_counts_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.FAULT_DIR, str(tmp_path))
    storage = PosixStorage(tmp_path / "checkpoints")
    (tmp_path / wire.DISK_FULL).touch()
    with pytest.raises(OSError, match="No space left") as refusal:
        storage.write("step-1.r1/rank-00000.safetensors", [b"x"])
    assert refusal.value.errno == errno.ENOSPC
    (tmp_path / wire.DISK_FULL).unlink()
    assert storage.write("step-1.r1/rank-00000.safetensors", [b"x"]) == 1


def test_in_memory_what_is_newest_is_damaged_without_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "step-11.r1").mkdir()  # nothing of it is there yet
    newest = checkpoint(tmp_path, "step-10.r1", complete=False)
    assert injected_faults.corrupt(str(tmp_path), "ram") == str(newest)
