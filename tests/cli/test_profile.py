"""`trainmaster profile`: whom it asks, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.jobs import job
from tests.cli.on_cluster import SPACE, Cluster, put, put_pod
from tests.cli.runs import SUCCEEDED, output_folder, status
from trainmaster.agent.shell import profile_commands
from trainmaster.contract.wire import environment, fault_protocol, profile_request
from trainmaster_operator.cli.cluster_connection import Target
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.trainer_tools.profile_of_scripts import Wanted
from trainmaster_operator.cli.trainer_tools.request_profile import of_job
from trainmaster_operator.cluster.kubernetes_exec import Done
from trainmaster_operator.cluster.port import Object
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState

RUNNING = status(JobPhase.RUNNING)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["profile", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line.removeprefix("trainmaster: ")


def test_a_run_on_this_machine_is_asked_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(tmp_path / "out", RUNNING)
    lock = os.open(out, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as the run itself does
    assert main(["profile", str(out), "--steps", "5"]) == 0
    assert capsys.readouterr().out == f"the next 5 steps will be recorded; the page will be in {out}/profile\n"
    assert profile_request.asked([str(tmp_path), str(out)]) == (out / profile_request.FILE, 5)
    os.close(lock)


def test_a_request_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output_folder(tmp_path / "out", RUNNING)
    lock = os.open(out, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert refused(capsys, str(out)) == f"{out}: the request cannot be written: no space left on device"
    os.close(lock)


def test_every_rank_of_a_script_is_asked_and_a_run_without_steps_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output_folder(tmp_path / "out", RUNNING)
    lock = os.open(out, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    set_framework(out, "TensorFlow")
    assert main(["profile", str(out), "--steps", "5"]) == 0
    said = f"every rank will record its next 5 steps; the records will be in {out}/profile, and rank 0's log says when"
    assert capsys.readouterr().out == f"{said}\n"
    first = profile_request.read(out / profile_request.FILE)
    output_folder(tmp_path / "new", status(JobPhase.RUNNING, step=0))
    shutil.copy(tmp_path / "new" / "status.yaml", out)
    set_framework(out, "JAX")
    assert main(["profile", str(out), "--steps", "5"]) == 0
    unseen = "no step has been seen yet, and nothing is recorded before one is: the steps of a JAX script are not seen"
    assert capsys.readouterr().out.startswith(f"{said}\n{unseen}")
    second = profile_request.read(out / profile_request.FILE)
    assert first is not None
    assert second is not None
    assert (first.steps, second.steps) == (5, 5)
    assert first.identity != second.identity
    os.close(lock)


def set_framework(out: Path, framework: str) -> None:
    resource = yaml.safe_load((out / "status.yaml").read_text())
    resource["spec"]["framework"] = framework
    (out / "status.yaml").write_text(yaml.safe_dump(resource))


def test_a_run_that_is_over_or_has_no_profiler_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(tmp_path / "out", RUNNING)
    assert refused(capsys, str(out)).startswith(f"{out}: this run is not running now")
    (tmp_path / "empty").mkdir()
    assert refused(capsys, str(tmp_path / "empty")).startswith(
        f"{tmp_path}/empty: holds no run; the output folder of a run is expected"
    )
    locks = [os.open(folder, os.O_RDONLY) for folder in (out, output_folder(tmp_path / "done", SUCCEEDED))]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert refused(capsys, str(tmp_path / "done")) == f"{tmp_path}/done: has succeeded, so it has no next steps"
    for steps in ("0", "101"):
        assert refused(capsys, str(out), "--steps", steps) == f"--steps {steps}: must be 1 to 100"
    for seconds in ("0", "-1", "nan", "inf"):
        assert refused(capsys, str(out), "--wait", seconds).endswith("must be a number of seconds above 0")
    assert refused(capsys, str(out), "--out", "x") == (
        f"--out x: is for scripts on a cluster; the records of this run will be in {out}/profile"
    )
    set_framework(out, "XGBoost")
    assert (
        refused(capsys, str(out)) == f"{out}: its framework is XGBoost, which has no profiler that could record steps"
    )
    set_framework(out, "Caffe")
    assert "another version of Trainmaster created this job" in refused(capsys, str(out))
    for lock in locks:
        os.close(lock)
    assert not (out / profile_request.FILE).exists()


class World:
    """A job of four pods, rank 0 in slot 2. `code`: what its agent answers with."""

    def __init__(self, tmp_path: Path, now: JobState, code: int = 0, **spec: Any) -> None:
        self.code = code
        self.store = MemoryStore()
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump({**job(metadata__name="tiny"), **spec}))
        self.job = put(self.store, file, now=now.model_copy(update={"roundMap": "2-4,0"}))
        for slot in range(5):
            put_pod(self.store, self.job, slot, incarnation=1)
        self.asked: list[tuple[str, list[str]]] = []
        self.target = Target(Cluster(self.store), SPACE, None)  # type: ignore[arg-type]

    async def in_pod(self, pod: Object, words: list[str]) -> Done:
        self.asked.append((pod["metadata"]["name"], words))
        return Done(self.code, "\x1b[2Jso be it\n", "\x1b[2Jno\x07 agent\n")  # A terminal must obey none of it.

    def ask(self, out: Path | None = None) -> str:
        return asyncio.run(of_job(self.target, self.job, Wanted(4, out, 60), self.in_pod))


def test_on_a_cluster_the_pod_of_rank_0_is_asked(tmp_path: Path) -> None:
    world = World(tmp_path, RUNNING)
    assert world.ask() == "so be it"
    assert world.asked == [("tiny-worker-2-1", ["profile", "4"])]


def test_an_agent_that_cant_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="tiny-worker-2-1: no agent"):
        World(tmp_path, RUNNING, code=1).ask()


def test_a_folder_for_records_is_refused_for_the_built_in_trainer(tmp_path: Path) -> None:
    world = World(tmp_path, RUNNING)
    with pytest.raises(Refusal, match="team-a/tiny puts its page next to its checkpoints"):
        world.ask(out=tmp_path / "records")
    assert world.asked == []


def test_in_the_pod_the_request_is_laid_where_rank_0_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(environment.POD_UID, "uid-7")
    assert profile_commands.command(["4"]) == 1
    assert capsys.readouterr().err.startswith("no agent of this pod can be asked: ")
    fault_protocol.folder("uid-7").mkdir()
    assert profile_commands.command(["4"]) == 0
    assert "the next 4 steps are recorded" in capsys.readouterr().out
    assert profile_request.asked([str(fault_protocol.folder("uid-7"))]) == (
        fault_protocol.folder("uid-7") / profile_request.FILE,
        4,
    )
    assert profile_commands.command([]) == 1
    for words in (["4", "../x"], ["collect", "../x", "0"], ["withdraw", "../../etc"], ["collect", "0123456789ab"]):
        assert profile_commands.command(words) == 1
    assert profile_commands.command(["4", "0123456789ab"]) == 0
    found = profile_request.read(fault_protocol.folder("uid-7") / profile_request.FILE)
    assert found == profile_request.Request(4, "0123456789ab")
    capsys.readouterr()
    assert profile_commands.command(["collect", "0123456789ab", "0"]) == 0
    assert capsys.readouterr().out == '{"waiting": true, "marks": {}, "files": []}\n'
    assert profile_commands.command(["withdraw", "0123456789ab"]) == 0
    assert list(fault_protocol.folder("uid-7").iterdir()) == []
