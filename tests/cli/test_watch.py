"""`trainmaster status --watch`: a job on a cluster, over the memory store, or a run, until it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import WriteJob
from tests.cli.on_cluster import SPACE, Cluster, lead, put, put_pod, update
from tests.cli.runs import CLOSED, CRASH, RECOVERY, output_folder, status
from tests.cli.test_operator_presence import micro
from trainmaster_operator.cli import output_folder as output
from trainmaster_operator.cli.cluster_connection import Target
from trainmaster_operator.cli.container_logs import Source
from trainmaster_operator.cli.display import live_display
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.cli.display.watch_job import follow
from trainmaster_operator.cli.display.watch_run import watch_run
from trainmaster_operator.cli.main import main
from trainmaster_operator.cluster.port import JOB, Object, Unavailable
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.runtime.virtual_clock import run_virtual


class Told:
    """A Display that keeps the news."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.words: list[str] = []

    def start(self) -> None: ...
    def draw(self) -> None: ...
    def stop(self) -> None: ...

    def tell(self, news: Any) -> None:
        self.words.append(f"{news.word}: {news.text}")


def watched(store: MemoryStore, job: Object, *changes: Callable[[], Any]) -> tuple[int, Told]:
    """Follows a job while changes happen, one a second."""
    shown: list[Told] = []

    def make(scene: Scene) -> live_display.Display:
        shown.append(Told(scene))
        return shown[0]

    async def run() -> int:
        following = asyncio.create_task(follow(Target(MemoryCluster(store), SPACE, _no_logs), job, make))
        for change in changes:
            await asyncio.sleep(1)
            change()
        return await following

    return run_virtual(run()), shown[0]


async def _no_logs(source: Source, follow: bool, since: str) -> AsyncIterator[bytes]:
    raise AssertionError("nobody asked for logs")
    yield b""


def test_a_job_is_followed_until_it_succeeds(write_job: WriteJob) -> None:
    store = MemoryStore()
    job = put(store, write_job(), now=status(step=10))
    failed = status(JobPhase.RECOVERING, round=2, lastFailure=CRASH, recoveries=[RECOVERY])
    code, told = watched(
        store,
        job,
        lambda: put_pod(store, job, 0),
        lambda: update(store, job, failed),
        lambda: update(store, job, failed.model_copy(update={"phase": JobPhase.RUNNING, "recoveries": [CLOSED]})),
        lambda: update(store, job, status(JobPhase.SUCCEEDED, step=100)),
    )
    assert code == 0
    assert [word.split(":")[0] for word in told.words] == ["failure", "recovery", "recovered", "running", "succeeded"]
    assert [pod.name for pod in told.scene.pods] == ["tiny-worker-0-0"]
    assert told.scene.world_size == 4


def test_a_job_that_fails_ends_with_1_and_one_that_is_deleted_too(write_job: WriteJob) -> None:
    store = MemoryStore()
    job = put(store, write_job())
    failed = status(JobPhase.FAILED, lastFailure=CRASH)
    code, told = watched(store, job, lambda: update(store, job, failed))
    assert (code, told.words[-2].split(":")[0]) == (1, "failed")
    assert told.words[-1] == f"logs: trainmaster logs tiny -n {SPACE} --rank 2"

    def again() -> None:
        store.delete(JOB, SPACE, "other")
        put(store, write_job(), "other", status(JobPhase.SUCCEEDED))  # the same name, another job

    code, told = watched(store, put(store, write_job(), "other"), again)
    assert (code, told.words) == (1, ["deleted: the job was deleted"])


def test_a_job_that_has_ended_already_is_told_at_once(write_job: WriteJob) -> None:
    store = MemoryStore()
    job = put(store, write_job(), now=status(JobPhase.SUCCEEDED))
    code, told = watched(store, job)
    assert (code, told.words[-1].split(",")[0]) == (0, "succeeded: step 60")


def test_a_job_that_nobody_watches_any_more_is_not_followed_further(write_job: WriteJob) -> None:
    store = MemoryStore()
    job = put(store, write_job(), now=status(step=10))

    class Unread(Told):
        def draw(self) -> None:
            raise BrokenPipeError

    async def run() -> int:
        return await asyncio.wait_for(follow(Target(MemoryCluster(store), SPACE, _no_logs), job, Unread), 60)

    with pytest.raises(BrokenPipeError):
        run_virtual(run())


def test_a_cluster_that_does_not_answer_for_a_while_is_told_and_waited_for(write_job: WriteJob) -> None:
    store = MemoryStore()
    job = put(store, write_job())
    shown: list[Told] = []

    async def run() -> int:
        cluster = MemoryCluster(store)
        listed, away = cluster.list, [True]

        async def failing(*rest: Any) -> Any:
            if away:
                raise Unavailable("no answer")
            return await listed(*rest)

        cluster.list = failing  # type: ignore[method-assign]
        make = lambda scene: shown.append(Told(scene)) or shown[0]  # type: ignore[func-returns-value]  # noqa: E731
        following = asyncio.create_task(follow(Target(cluster, SPACE, _no_logs), job, make))
        await asyncio.sleep(60)
        away.clear()
        await asyncio.sleep(60)
        update(store, job, status(JobPhase.SUCCEEDED))
        return await following

    assert run_virtual(run()) == 0
    assert [word for word in shown[0].words if word.startswith("cluster")] == [
        "cluster: does not answer; trying again",
        "cluster: answers again",
    ]


def test_an_operator_that_goes_and_comes_back_is_told(write_job: WriteJob) -> None:
    store = MemoryStore()
    job = put(store, write_job(), now=status(step=10))
    put_pod(store, job, 0)
    shown: list[Told] = []

    async def run() -> int:
        make = lambda scene: shown.append(Told(scene)) or shown[0]  # type: ignore[func-returns-value]  # noqa: E731
        following = asyncio.create_task(follow(Target(MemoryCluster(store), SPACE, _no_logs), job, make))
        await asyncio.sleep(15)
        lead(store, micro(time.time() - 600))
        await asyncio.sleep(15)
        assert "No operator has led for 10m" in shown[0].scene.unled
        lead(store)
        await asyncio.sleep(15)
        assert shown[0].scene.unled == ""
        update(store, job, status(JobPhase.SUCCEEDED))
        return await following

    assert run_virtual(run()) == 0
    told = [word.split(":")[0] for word in shown[0].words if word.startswith("operator")]
    assert told == ["operator", "operator"]
    assert "operator: an operator leads again" in shown[0].words


def test_submit_with_watch_ends_as_the_job_does(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    created = cluster.create

    async def create_and_fail(kind: str, obj: Object) -> Object:
        made = await created(kind, obj)
        update(cluster.store, made, status(JobPhase.FAILED))
        return made

    cluster.create = create_and_fail  # type: ignore[method-assign]
    assert main(["submit", str(write_job()), "--watch", "--plain"]) == 1
    out = capsys.readouterr().out
    assert "tiny: 4 ranks, in namespace team-a" in out
    assert "failed" in out


# -- a run on this machine


def followed(out: Path, *changes: JobState) -> tuple[int, list[str]]:
    """Watches a run that goes on, and whose command ends after the last change. A change comes with each look."""
    shown: list[Told] = []
    folder = output.OutputFolder.claim(out)
    left = [*changes]

    def make(scene: Scene) -> live_display.Display:
        shown.append(Told(scene))
        return shown[0]

    def sleep(_: float) -> None:
        if left:
            output_folder(out, left.pop(0))
        else:
            folder.release()

    return watch_run(out, make, sleep), shown[0].words


def test_a_run_is_followed_until_it_succeeds(tmp_path: Path) -> None:
    out = output_folder(tmp_path / "out", status(step=10))
    failed = status(JobPhase.RECOVERING, round=2, lastFailure=CRASH, recoveries=[RECOVERY])
    code, words = followed(out, failed, status(JobPhase.SUCCEEDED, step=100))
    assert code == 0
    assert [word.split(":")[0] for word in words] == ["failure", "recovery", "succeeded"]


def test_a_run_that_fails_ends_with_1_and_the_command_that_shows_why(tmp_path: Path) -> None:
    out = output_folder(tmp_path / "out", status(step=10))
    code, words = followed(out, status(JobPhase.FAILED, lastFailure=CRASH))
    assert (code, words[-1]) == (1, f"logs: trainmaster logs {out} --rank 2")


def test_a_run_whose_command_ends_before_the_job_ends_with_1(tmp_path: Path) -> None:
    out = output_folder(tmp_path / "out", status(step=10))
    code, words = followed(out)
    assert (code, words[-1].split(".")[0]) == (1, "interrupted: The command of the run ended while the job was running")


@pytest.mark.parametrize(("phase", "code"), [(JobPhase.SUCCEEDED, 0), (JobPhase.FAILED, 1), (JobPhase.RUNNING, 1)])
def test_a_run_that_does_not_go_on_is_shown_once(
    tmp_path: Path, phase: JobPhase, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output_folder(tmp_path / "out", status(phase))
    assert main(["status", str(out), "--watch"]) == code
    assert capsys.readouterr().out.startswith("tiny: ")
