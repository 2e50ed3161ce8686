"""The socket at which ranks ask: each fault fires once, and what a rank can't do is done before it is answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from trainmaster_operator.cli.faults import FaultServer

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

    async def kill_pod(self, name: str) -> None:
        self.done.append(f"pod {name}")

    async def kill_operator(self) -> None:
        self.done.append("operator")


async def ask(path: Path, *lines: str) -> list[bytes]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    answers = []
    for line in lines:
        writer.write(line.encode() + b"\n")
        answers.append(await reader.readline())
    writer.close()
    return answers


def question(fault: str, **fields: Any) -> str:
    return json.dumps({"fire": fault, "pod": "tiny-worker-0-0", "rank": 1, "step": 5, **fields})


def asked(tmp_path: Path, *lines: str) -> tuple[World, list[str], list[bytes]]:
    async def main() -> tuple[World, list[str], list[bytes]]:
        world, told = World(), []
        server = FaultServer(tmp_path / "f.sock", FAULTS, world.kill_pod, world.kill_operator, told.append)
        await server.start()
        try:
            return world, told, await ask(tmp_path / "f.sock", *lines)
        finally:
            await server.close()

    return asyncio.run(main())


def test_a_fault_fires_once_although_its_step_is_replayed(tmp_path: Path) -> None:
    _, told, answers = asked(tmp_path, question("fault-0"), question("fault-0"), question("fault-9"))
    assert [json.loads(answer) for answer in answers] == [{"go": True}, {"go": False}, {"go": False}]
    assert told == ["kill, asked for on rank 1 in step 5"]


def test_pods_and_the_operator_are_killed_before_the_answer(tmp_path: Path) -> None:
    world, _, answers = asked(tmp_path, question("fault-1"), question("fault-2"))
    assert all(json.loads(answer) == {"go": True} for answer in answers)
    assert world.done == ["pod tiny-worker-0-0", "operator"]


def test_nonsense_ends_the_connection_and_fires_nothing(tmp_path: Path) -> None:
    world, told, answers = asked(tmp_path, "not json")
    assert answers == [b""]
    assert told == world.done == []
