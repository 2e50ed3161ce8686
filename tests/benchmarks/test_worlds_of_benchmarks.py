"""What the ranks of a benchmark need of each other and of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import ports, worlds
from benchmarks.turns import Turns
from trainmaster.contract.wire import environment


def test_a_rank_that_dies_is_told_while_the_others_wait_for_it() -> None:
    turns = Turns(2)
    dead, waiting = turns.ends(0), turns.ends(1)
    for end in dead:
        os.close(end)
    with pytest.raises(EOFError):
        turns.finished()  # the other rank has its end open and says nothing
    for end in waiting:
        os.close(end)
    turns.close()


def test_a_free_port_is_none_that_the_system_gives_away() -> None:
    first, _last = map(int, ports.RANGE.read_text().split())
    assert all(1024 <= ports.free_port() < first for _ in range(20))


def test_each_rank_of_a_world_on_one_machine_has_a_number_of_its_own_there(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    def start(command: list[str], env: dict[str, str], **_: object) -> object:
        started.append(env)
        Path(env[environment.OUTPUT_DIR], "metrics.jsonl").touch()
        return SimpleNamespace(pid=2**31 - 1, wait=lambda timeout=None: 0)

    monkeypatch.setattr(worlds.subprocess, "Popen", start)
    assert worlds.train({}, 3) == []
    assert [(env["RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) for env in started] == [
        *(("0", "0", "3"), ("1", "1", "3"), ("2", "2", "3"))
    ]
