"""`trainmaster profile` for a job of a script on a cluster, whose pods are folders with the agent's own commands."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.jobs import PYTORCH, job
from tests.cli.on_cluster import SPACE, Cluster, put, put_pod
from tests.cli.runs import status
from trainmaster.agent.shell import profile_commands
from trainmaster.contract.wire import profile_records, profile_request
from trainmaster.contract.wire.profile_records import DONE, FAILED, Mark
from trainmaster_operator.cli.cluster_connection import Target
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.trainer_tools import profile_of_scripts
from trainmaster_operator.cli.trainer_tools.profile_of_scripts import Receive, Wanted
from trainmaster_operator.cluster.kubernetes_exec import Done
from trainmaster_operator.cluster.port import Object, Unavailable
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobPhase

pytestmark = pytest.mark.usefixtures("no_pause")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_of_scripts, "PAUSE_S", 0.0)
    monkeypatch.setattr(profile_of_scripts, "ONE_LOOK_S", 0.0)


Record = Callable[[Path, profile_request.Request, int], None]


def records(folder: Path, request: profile_request.Request, rank: int) -> None:
    """What a rank does that records."""
    window = profile_records.claim(folder, request.identity, 1, 10, request.steps)
    place = window.folder / "plugins" / "profile" / window.folder.name
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{profile_records.rank_name(rank)}.xplane.pb").write_bytes(b"steps of %d" % rank)
    profile_records.write_mark(folder, request.identity, rank, Mark(DONE, 1, "steps 12 to 14"))


def fails(folder: Path, request: profile_request.Request, rank: int) -> None:
    profile_records.write_mark(folder, request.identity, rank, Mark(FAILED, 1, f"no profiler \x1b in {rank}"))


class World:
    """A job of two pods with two ranks each, rank 0 in slot 1. `ranks`: what each rank does with a request, which the
    last rank of a pod removes; None: nothing."""

    def __init__(self, tmp_path: Path, *ranks: Record | None) -> None:
        self.folder, self.ranks = tmp_path, ranks
        store = MemoryStore()
        file = tmp_path / "job.yaml"
        spec = {"spec__framework": "JAX", "spec__workers__ranksPerPod": 2}
        file.write_text(yaml.safe_dump(job(PYTORCH, **spec)))
        now = status(JobPhase.RUNNING).model_copy(update={"roundMap": "1,0"})
        self.job = put(store, file, now=now)
        for slot in range(2):
            put_pod(store, self.job, slot)
        for name in self.names:
            (tmp_path / name).mkdir()
        self.target = Target(Cluster(store), SPACE, None)  # type: ignore[arg-type]
        self.asked: list[tuple[str, str]] = []

    names = ("tiny-worker-1-0", "tiny-worker-0-0")  # in the order of their ranks

    async def ask(self, pod: Object, words: list[str], receive: Receive) -> Done:
        name = pod["metadata"]["name"]
        self.asked.append((name, words[1]))
        folder = self.folder / name
        output = io.BytesIO()
        assert words[0] == "profile"
        if words[1] == "collect":
            assert receive is not None
            profile_commands.collect(folder, words[2], float(words[3]), output)
            receive(output.getvalue())
        elif words[1] == "withdraw":
            profile_commands.withdraw(folder, words[2])
        else:
            profile_commands.request(folder, int(words[1]), words[2])
            self.act(name)
        return Done(0, "", "")

    def act(self, name: str) -> None:
        folder = self.folder / name
        request = profile_request.read(folder / profile_request.FILE)
        assert request is not None
        first = self.names.index(name) * 2
        acts = self.ranks[first : first + 2]
        for rank, act in enumerate(acts, first):
            if act is not None:
                act(folder, request, rank)
        if None not in acts:
            profile_request.take_away(folder / profile_request.FILE, request.identity)

    def record(self, out: Path | None = None, **wanted: Any) -> str:
        asks = wanted.pop("ask", self.ask)
        return asyncio.run(
            profile_of_scripts.record(self.target, self.job, Wanted(3, out, wanted.get("wait_s", 60)), asks)
        )

    def left(self) -> list[str]:
        """What lies in the folders of the pods, and beside them."""
        inside = [str(path) for name in self.names for path in (self.folder / name).rglob("*") if path.is_file()]
        return inside + [name for name in os.listdir(self.folder) if name.startswith(".")]


def test_the_records_of_all_ranks_lie_where_tensorboard_looks_and_the_pods_are_left_empty(tmp_path: Path) -> None:
    world = World(tmp_path, *[records] * 4)
    out = tmp_path / "made" / "here"
    assert world.record(out) == f"{out} has the records of 4 of 4 ranks; tensorboard --logdir {out} opens them"
    folder = out / "plugins" / "profile" / "tiny"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        f"rank-0000{rank}.xplane.pb": f"steps of {rank}" for rank in range(4)
    }
    assert [path for path in out.rglob("*") if path.is_file()] == list(folder.rglob("*"))
    assert out.stat().st_mode & 0o777 == 0o755
    assert world.left() == []


def test_by_default_the_folder_is_named_after_the_job_and_an_earlier_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path, *[records] * 4)
    assert [world.record().split()[0] for _ in range(3)] == ["profile-tiny", "profile-tiny-2", "profile-tiny-3"]


def test_a_folder_that_holds_something_is_refused_before_a_pod_is_asked(tmp_path: Path) -> None:
    world = World(tmp_path, *[records] * 4)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for out in (tmp_path, tmp_path / "job.yaml", tmp_path / "link"):
        with pytest.raises(Refusal, match="a folder that is new or empty is expected"):
            world.record(out)
    assert world.asked == []


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    World(tmp_path, *[records] * 4).record(tmp_path / "out")
    assert (tmp_path / "out" / "plugins").is_dir()


def test_a_rank_whose_profiler_fails_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    world = World(tmp_path, records, fails, records, records)
    assert world.record(tmp_path / "out").splitlines() == [
        "rank 1: no profiler   in 1",
        f"{tmp_path}/out has the records of 3 of 4 ranks; tensorboard --logdir {tmp_path}/out opens them",
    ]


def test_where_no_rank_has_recorded_nothing_is_left(tmp_path: Path) -> None:
    world = World(tmp_path, *[fails] * 4)
    with pytest.raises(Refusal) as refusal:
        world.record(tmp_path / "a" / "b" / "out")
    assert refusal.value.lines[0] == "rank 0: no profiler   in 0"
    assert refusal.value.lines[-1] == "team-a/tiny: nothing was recorded; nothing is kept"
    assert not (tmp_path / "a").exists()
    assert world.left() == []


def test_when_the_time_is_up_it_says_what_was_missing_and_takes_the_request_back(tmp_path: Path) -> None:
    world = World(tmp_path, None, None, records, None)
    with pytest.raises(Refusal) as refusal:
        world.record(tmp_path / "out", wait_s=0.01)
    first, second, _ = refusal.value.lines
    assert first.startswith(
        "tiny-worker-1-0: the time is up: none of its ranks has completed a step that Trainmaster sees; the request is "
        "taken back; to ask again with more time, give the same command with a larger --wait"
    )
    assert second.startswith("tiny-worker-0-0: the time is up: 1 of its 2 ranks have begun to record, but not all")
    assert world.asked.count(("tiny-worker-1-0", "withdraw")) == 1
    assert world.left() == []


def test_a_pod_that_cannot_be_asked_is_told_and_one_that_goes_away_too(tmp_path: Path) -> None:
    world = World(tmp_path, *[records] * 4)

    async def ask(pod: Object, words: list[str], receive: Receive) -> Done:
        if pod["metadata"]["name"] == world.names[0]:
            return Done(1, "", "no agent of this pod\ncan be asked: \x1b x")
        return await world.ask(pod, words, receive)

    assert world.record(tmp_path / "out", ask=ask).splitlines()[0] == (
        "tiny-worker-1-0: no agent of this pod can be asked:   x"
    )

    async def broken(pod: Object, words: list[str], receive: Receive) -> Done:
        if pod["metadata"]["name"] == world.names[1] and words[1] == "collect":
            assert receive is not None
            receive(b'{"waiting": false, "marks": {}, "files": [["rank-00002.xplane.pb", 9]]}\nhalf')
            raise Unavailable("exec: broke off")
        return await world.ask(pod, words, receive)

    lines = world.record(tmp_path / "other", ask=broken).splitlines()
    assert lines[0] == "tiny-worker-0-0: exec: broke off"
    assert lines[1].startswith(f"{tmp_path}/other has the records of 2 of 4 ranks")
    assert not list((tmp_path / "other").rglob("*rank-00002*"))


@pytest.mark.parametrize("name", ["../../../escaped.xplane.pb", "/etc/cron.d/rank-00000.xplane.pb"])
def test_a_pod_that_sends_files_of_its_own_choice_is_left_out(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, *[records] * 4)
    header = {"waiting": False, "marks": {}, "files": [["rank-00000.xplane.pb", 1], [name, 1]]}

    async def ask(pod: Object, words: list[str], receive: Receive) -> Done:
        if pod["metadata"]["name"] == world.names[0] and words[1] == "collect":
            assert receive is not None
            receive(json.dumps(header).encode() + b"\nxy")
        return await world.ask(pod, words, receive)

    first, *_, last = world.record(tmp_path / "out", ask=ask).splitlines()
    assert first.startswith("tiny-worker-1-0: sent a file ")
    assert "2 of 4 ranks" in last
    assert sorted(path.name for path in (tmp_path / "out").rglob("rank-*")) == [
        "rank-00002.xplane.pb",
        "rank-00003.xplane.pb",
    ]
    assert not (tmp_path / "escaped.xplane.pb").exists()
    assert world.left() == []


def test_ctrl_c_leaves_nothing_here_and_nothing_in_the_pods(tmp_path: Path) -> None:
    world = World(tmp_path, records, None, records, records)

    async def main() -> None:
        waits = asyncio.Event()

        async def ask(pod: Object, words: list[str], receive: Receive) -> Done:
            if words[1] == "collect" and pod["metadata"]["name"] == world.names[0]:
                waits.set()
                await asyncio.Event().wait()
            return await world.ask(pod, words, receive)

        wanted = Wanted(3, tmp_path / "out", 60)
        task = asyncio.create_task(profile_of_scripts.record(world.target, world.job, wanted, ask))
        await waits.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())
    assert not (tmp_path / "out").exists()
    assert world.left() == []
    assert {name for name, word in world.asked if word == "withdraw"} == set(world.names)


def test_a_job_without_a_pod_of_rank_0_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, *[records] * 4)
    now = status(JobPhase.RUNNING).model_copy(update={"roundMap": "3,0"})
    world.job["status"] = put(MemoryStore(), tmp_path / "job.yaml", now=now)["status"]
    with pytest.raises(Refusal, match="team-a/tiny: rank 0 has no running pod"):
        world.record(tmp_path / "out")
    assert world.asked == []
