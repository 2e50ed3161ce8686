"""`trainmaster logs`: what ranks print, merged in the order of time, over the memory store."""

from __future__ import annotations

import asyncio
import io
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from tests.api.jobs import PYTORCH
from tests.cli.conftest import WriteJob
from tests.cli.on_cluster import SPACE, Cluster, put, put_pod, refused, update
from tests.cli.runs import status
from trainmaster_operator.cli.cluster_connection import Target
from trainmaster_operator.cli.container_logs import Source, parsed
from trainmaster_operator.cli.logs import job_logs
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cluster.port import JOB, POD, Object
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.runtime.virtual_clock import run_virtual


class Logs:
    """What pods have printed; `grows[pod]`: what comes while somebody follows, before the container ends."""

    def __init__(self) -> None:
        self.lines: dict[str, list[bytes]] = {}
        self.asked: list[tuple[str, bool, str]] = []
        self.queues: dict[str, asyncio.Queue[bytes | None]] = {}

    async def read(self, source: Source, follow: bool, since: str) -> AsyncIterator[bytes]:
        self.asked.append((source.pod, follow, since))
        for raw in list(self.lines.get(source.pod, [])):
            if raw[:19].decode() >= since[:19]:  # whole seconds, as the server does it
                yield raw
        while follow:
            raw = await self.queues.setdefault(source.pod, asyncio.Queue()).get()
            if raw is None:
                return
            self.lines.setdefault(source.pod, []).append(raw)
            yield raw

    def say(self, pod: str, raw: bytes | None) -> None:
        self.queues.setdefault(pod, asyncio.Queue()).put_nowait(raw)


def at(second: float, text: str) -> bytes:
    return f"2026-11-21T15:00:{second:09.6f}000Z {text}".encode()


def shown(store: MemoryStore, said: Logs, job: Object, rank: int | None) -> list[str]:
    out = io.BytesIO()

    async def run() -> None:
        choice = job_logs.Choice(store.find(JOB, SPACE, job["metadata"]["name"]), rank)
        await job_logs.history(
            Target(MemoryCluster(store), SPACE, said.read), job, choice, out.write, may_be_empty=False
        )

    run_virtual(run())
    return out.getvalue().decode().splitlines()


def test_all_ranks_are_merged_in_the_order_of_time_with_who_said_it(write_job: WriteJob) -> None:
    store, said = MemoryStore(), Logs()
    job = put(store, write_job())
    put_pod(store, job, 0, 0, terminated={"exitCode": 1})  # replaced, and still there
    for slot, incarnation in ((0, 1), (1, 0)):
        put_pod(store, job, slot, incarnation)
    put_pod(store, job, 2, waiting={"reason": "ContainerCreating"})
    said.lines = {
        "tiny-worker-0-0": [at(1, "[rank 0] one"), at(2, "[rank 0] two")],
        "tiny-worker-0-1": [at(5.5, "[rank 0] again"), at(7, "[agent] ends")],
        "tiny-worker-1-0": [at(1.5, "[rank 1] one"), at(5.25, "[rank 1] two"), b"no time at all"],
    }
    assert shown(store, said, job, None) == [
        "[rank 0] one",
        "[rank 1] one",
        "[rank 0] two",
        "[rank 1] two",
        "[worker-1] no time at all",
        "[rank 0] again",
        "[worker-0] [agent] ends",
    ]
    assert sorted(said.asked) == [(f"tiny-worker-{name}", False, "") for name in ("0-0", "0-1", "1-0")]


def test_one_rank_s_lines_come_from_the_pods_of_its_slot_without_its_neighbours(write_job: WriteJob) -> None:
    store, said = MemoryStore(), Logs()
    job = put(store, write_job(PYTORCH, spec__workers__ranksPerPod=2, spec__workers__replicas=2))
    job = update(store, job, JobState(roundMap="1,0"))  # ranks 0 and 1 run in slot 1
    for slot in (0, 1):
        put_pod(store, job, slot)
    name = job["metadata"]["name"]
    said.lines = {
        f"{name}-worker-1-0": [at(1, "[rank 0] zero"), at(2, "[rank 1] one"), at(3, "[agent] note")],
        f"{name}-worker-0-0": [at(1, "[rank 2] two")],
    }
    assert shown(store, said, job, 1) == ["[rank 1] one", "[agent] note"]
    assert shown(store, said, job, 2) == ["[rank 2] two"]


def test_ranks_and_logs_that_are_not_there_are_told(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = put(cluster.store, write_job())
    assert refused(capsys, "logs", "tiny", "--rank", "4") == "--rank 4: tiny has ranks 0 to 3"
    assert "its ranks have printed nothing: it has no pods; --follow waits for output" in refused(
        capsys, "logs", "tiny"
    )
    put_pod(cluster.store, job, 0, waiting={"reason": "ContainerCreating"})
    assert "its ranks have printed nothing: none of its pods has started" in refused(capsys, "logs", "tiny", "--all")


@pytest.fixture
def few_files() -> Iterator[None]:
    """This process has many files open and may open few more, but may raise its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        last = max(stack.enter_context(open(os.devnull, "rb")).fileno() for _ in range(100))
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 24, hard))
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_more_logs_are_merged_than_files_may_be_open_at_first(write_job: WriteJob) -> None:
    store, said = MemoryStore(), Logs()
    job = put(store, write_job())
    for slot in range(100):
        put_pod(store, job, slot)
        said.lines[f"tiny-worker-{slot}-0"] = [at(slot / 4, f"[rank {slot}] here")]
    assert shown(store, said, job, None) == [f"[rank {slot}] here" for slot in range(100)]


def test_more_logs_than_the_system_lets_be_open_are_refused(
    write_job: WriteJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, said = MemoryStore(), Logs()
    job = put(store, write_job())
    for slot in range(40):
        put_pod(store, job, slot)
    already = len(os.listdir("/dev/fd")) - 1
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (already + 80, already + 80))
    words = f"^{SPACE}/tiny: it has 40 logs, and this system lets a process open only 16 at the same time"
    with pytest.raises(Refusal, match=words):
        shown(store, said, job, None)


def test_times_of_other_zones_and_of_any_precision_are_in_order() -> None:
    texts = [
        b"2026-11-21T15:00:01Z a",
        b"2026-11-21T15:00:01.5Z b",
        b"2026-11-21T17:00:01.75+02:00 c",
        b"2026-11-21T15:00:01.750000001Z d",
    ]
    lines = [parsed(text, "") for text in texts]
    assert [line.text for line in sorted(lines)] == [b"a", b"b", b"c", b"d"]
    assert lines[2].at == "2026-11-21T15:00:01.750000000Z"


def test_logs_that_nobody_reads_any_more_are_not_followed_further(write_job: WriteJob) -> None:
    store, said = MemoryStore(), Logs()
    job = put(store, write_job())
    put_pod(store, job, 0)
    said.say("tiny-worker-0-0", at(1, "[rank 0] one"))

    def unread(text: bytes) -> None:
        raise BrokenPipeError

    async def run() -> None:
        target = Target(MemoryCluster(store), SPACE, said.read)
        await asyncio.wait_for(job_logs.Follower(target, job, job_logs.Choice(job, None), unread, {}).run(), 60)

    with pytest.raises(BrokenPipeError):
        run_virtual(run())


def test_a_followed_job_goes_on_with_its_new_pods_until_it_has_ended(write_job: WriteJob) -> None:
    store, said, out = MemoryStore(), Logs(), io.BytesIO()
    job = put(store, write_job(), now=status())
    old = put_pod(store, job, 0)
    said.lines = {"tiny-worker-0-0": [at(1, "[rank 0] before")]}

    async def run() -> None:
        target = Target(MemoryCluster(store), SPACE, said.read)
        choice = job_logs.Choice(job, None)
        last = await job_logs.history(target, job, choice, out.write, may_be_empty=True)
        following = asyncio.create_task(job_logs.Follower(target, job, choice, out.write, last).run())
        await asyncio.sleep(1)
        said.say("tiny-worker-0-0", at(2, "[rank 0] while"))
        await asyncio.sleep(1)
        ended = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": {}}}]}
        store.update_status(POD, {**store.find(POD, SPACE, old["metadata"]["name"]), "status": ended})
        said.say("tiny-worker-0-0", None)
        put_pod(store, job, 0, 1)
        await asyncio.sleep(2)
        said.say("tiny-worker-0-1", at(9, "[rank 0] late"))
        said.say("tiny-worker-0-1", at(8, "[agent] early"))
        await asyncio.sleep(5)
        assert not following.done()
        update(store, job, status(JobPhase.SUCCEEDED))
        await asyncio.sleep(5)
        assert not following.done()  # its last pod still prints
        current = store.find(POD, SPACE, "tiny-worker-0-1")
        store.update_status(POD, {**current, "status": {**ended, "phase": "Succeeded"}})
        said.say("tiny-worker-0-1", None)
        await following

    run_virtual(run())
    assert out.getvalue().decode().splitlines() == [
        "[rank 0] before",
        "[rank 0] while",
        "[worker-0] [agent] early",
        "[rank 0] late",
    ]
