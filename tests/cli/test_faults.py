"""The socket at which ranks ask: each fault fires once, and what a rank can't do is done before it is answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import job
from tests.cluster.examples import pod
from trainmaster.contract.wire.fault_protocol import short
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli.fault_injection import run_faults
from trainmaster_operator.cli.fault_injection.run_faults import Fault, FaultServer
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.run.local_faults import Troublemaker
from trainmaster_operator.cluster.port import POD
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_faults import Trouble
from trainmaster_operator.local.pod_process import faults_socket
from trainmaster_operator.local.process_kubelet import LOST

FAULTS = json.dumps(
    [
        {"id": "fault-0", "kind": "kill", "rank": 1, "step": 5, "code": 1},
        {"id": "fault-1", "kind": "kill-pod", "rank": 0, "step": 6, "code": 1},
        {"id": "fault-2", "kind": "kill-operator", "rank": 0, "step": 7, "code": 1},
    ]
)


class World:
    def __init__(self) -> None:
        self.done: list[str] = []

    async def kill_pod(self, _: Fault, name: str) -> str:
        self.done.append(f"pod {name}")
        return ""

    async def kill_operator(self, *_: Any) -> str:
        self.done.append("operator")
        return "it is dead already"


async def ask(path: Path, *lines: str) -> list[bytes]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    answers = []
    for line in lines:
        writer.write(line.encode() + b"\n")
        answers.append(await reader.readline())
    writer.close()
    return answers


def question(fault: str, **fields: Any) -> str:
    return json.dumps({"fire": fault, "pod": "tiny-worker-0-0", "rank": 1, "step": 5, "after": 4, **fields})


def asked(tmp_path: Path, *lines: str) -> tuple[World, list[str], list[bytes]]:
    async def main() -> tuple[World, list[str], list[bytes]]:
        world, told = World(), []
        acts = {"kill-pod": world.kill_pod, "kill-operator": world.kill_operator}
        server = FaultServer(tmp_path / "f.sock", FAULTS, acts, told.append)
        await server.start()
        try:
            return world, told, await ask(tmp_path / "f.sock", *lines)
        finally:
            await server.close()

    return asyncio.run(main())


def test_a_fault_fires_once_although_its_step_is_replayed(tmp_path: Path) -> None:
    _, told, answers = asked(tmp_path, question("fault-0"), question("fault-0"), question("fault-9"))
    assert [json.loads(answer) for answer in answers] == [{"go": True}, {"go": False}, {"go": False}]
    assert told == ["kill, asked for on rank 1 in step 5, whose last completed step is 4"]


def test_a_fault_in_a_jump_over_its_step_is_told_with_the_last_step_that_was_seen(tmp_path: Path) -> None:
    _, told, _ = asked(tmp_path, question("fault-0", step=7, after=0))
    assert told == ["kill, asked for on rank 1 in step 5, whose last completed step is 0"]


def test_faults_that_nobody_asked_for_are_still_waiting(tmp_path: Path) -> None:
    async def main() -> list[str]:
        server = FaultServer(tmp_path / "f.sock", FAULTS, {}, lambda _: None)
        await server.start()
        try:
            await ask(tmp_path / "f.sock", question("fault-1"))
            return [fault["id"] for fault in server.waiting]
        finally:
            await server.close()

    assert asyncio.run(main()) == ["fault-0", "fault-2"]


def test_pods_and_the_operator_are_killed_before_the_answer(tmp_path: Path) -> None:
    world, told, answers = asked(tmp_path, question("fault-1"), question("fault-2"))
    assert all(json.loads(answer) == {"go": True} for answer in answers)
    assert world.done == ["pod tiny-worker-0-0", "operator"]
    assert told[-1] == "kill-operator could not be done: it is dead already"


def test_a_fault_that_could_not_be_done_is_kept_with_the_reason(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, str]]:
        server = FaultServer(tmp_path / "f.sock", FAULTS, {"kill-operator": World().kill_operator}, lambda _: None)
        await server.start()
        try:
            await ask(tmp_path / "f.sock", question("fault-0"), question("fault-2"))
        finally:
            await server.close()
        return [(fault["id"], why_not) for fault, why_not in server.undone]

    assert asyncio.run(main()) == [("fault-2", "it is dead already")]


def test_the_operator_crashes_once_for_each_crash_and_those_that_wait_are_known(tmp_path: Path) -> None:
    async def main() -> None:
        world, trouble = World(), Trouble()
        troubles = Troublemaker(MemoryStore(), "s", tmp_path, trouble, world.kill_operator)  # type: ignore[arg-type]
        for writes in (3, 1, 9):
            await troubles.acts["crash-operator"]({"kind": "crash-operator", "writes": writes}, "")
        for _ in range(4):
            await trouble.done("patch", {"kind": POD})
        assert world.done == ["operator", "operator"]
        assert [fault["writes"] for fault in troubles.crashes] == [9]

    asyncio.run(main())


def test_a_shorter_outage_does_not_end_a_longer_one(tmp_path: Path) -> None:
    async def main() -> None:
        trouble = Trouble()
        acts = Troublemaker(MemoryStore(), "s", tmp_path, trouble, World().kill_operator).acts  # type: ignore[arg-type]
        for seconds in (3600.0, 1.0):
            await acts["api-outage"]({"kind": "api-outage", "seconds": seconds}, "")
        assert trouble.refuses_s > 3000

    asyncio.run(main())


def test_nonsense_ends_the_connection_and_fires_nothing(tmp_path: Path) -> None:
    world, told, answers = asked(tmp_path, "not json")
    assert answers == [b""]
    assert told == world.done == []


def test_every_kind_that_a_rank_cannot_do_is_done_here_or_by_its_agent(tmp_path: Path) -> None:
    from trainmaster.rank import injected_faults as grammar

    acts = Troublemaker(MemoryStore(), "s", tmp_path, Trouble(), World().kill_operator).acts  # type: ignore[arg-type]
    assert set(acts) == {name for name, kind in grammar.KINDS.items() if kind.by != "rank"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill:rank=9,step=2", "--fault kill:rank=9,step=2: the job has ranks 0 to 3, not 9"),
        ("kill:rank=1", "--fault 'kill:rank=1': step is missing, as in kill:rank=0,step=20"),
        ("kill:step=2000", "--fault kill:step=2000: the job has 100 steps, so it never reaches step 2000"),
    ],
)
def test_a_fault_that_makes_no_sense_for_the_job_is_refused(text: str, words: str) -> None:
    with pytest.raises(Refusal) as refusal:
        run_faults.parse([text], DistributedTrainingJob.model_validate(job()))
    assert list(refusal.value.lines) == [words]


class Pods:
    """Two pods, and an agent in the second one that takes faults."""

    def __init__(self, run_dir: Path) -> None:
        self.store = MemoryStore()
        self.run_dir = run_dir
        self.asked: list[Any] = []
        self.pods = []
        for slot in range(2):
            body = pod("s", f"tiny-worker-{slot}-0")
            body["metadata"]["labels"] = {"trainmaster.dev/slot": str(slot)}
            self.pods.append(self.store.create(POD, body))

    async def serve(self, slot: int) -> asyncio.Server:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.asked.append((slot, json.loads(await reader.readline())["do"]))
            reply = {"done": "yes"} if slot else {"refused": "it isn't here"}
            writer.write(json.dumps(reply).encode() + b"\n")
            writer.close()

        meta = self.pods[slot]["metadata"]
        path = faults_socket(self.run_dir, meta["name"], meta["uid"])
        path.parent.mkdir(parents=True)
        with short(path) as name:
            return await asyncio.start_unix_server(answer, name)


def test_what_an_agent_does_is_asked_of_the_one_that_can(tmp_path: Path) -> None:
    async def main() -> None:
        world = Pods(tmp_path)
        servers = [await world.serve(slot) for slot in range(2)]
        acts = Troublemaker(world.store, "s", tmp_path, Trouble(), World().kill_operator).acts  # type: ignore[arg-type]
        fault = {"kind": "lose-store", "rank": 0, "step": 6}
        assert await acts["lose-store"](fault, "tiny-worker-0-0") == ""
        assert world.asked == [(0, {**fault, "step": 0}), (1, {**fault, "step": 0})]
        assert await acts["partition"](fault, "tiny-worker-0-0") == "it isn't here"
        assert await acts["partition"](fault, "gone-worker-0-0") == "there is no pod gone-worker-0-0"
        for server in servers:
            server.close()

    asyncio.run(main())


def test_without_an_agent_the_reason_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        world = Pods(tmp_path)
        acts = Troublemaker(world.store, "s", tmp_path, Trouble(), World().kill_operator).acts  # type: ignore[arg-type]
        assert "its agent doesn't answer" in await acts["kill-agent"]({"kind": "kill-agent"}, "tiny-worker-0-0")
        assert await acts["lose-store"]({"kind": "lose-store"}, "") == "no pod hosts the store of the round"
        assert await acts["lose-node"]({"kind": "lose-node"}, "tiny-worker-1-0") == ""
        assert LOST in world.store.find(POD, "s", "tiny-worker-1-0")["metadata"]["annotations"]

    asyncio.run(main())
