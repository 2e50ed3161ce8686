"""The benchmark of torchtitan's speed, with a script of our own in the place of torchtitan."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import load, record, titan_speed
from benchmarks.public_scripts.runs import OURS, PEER
from benchmarks.public_scripts.scripts import PublicScript
from benchmarks.titan_speed import Block
from tests.benchmarks.test_public_scripts import sources, toy  # noqa: F401  the fixture is used by its name
from trainmaster.contract.wire import environment

MS = 10**6


@pytest.mark.processes
def test_systems_train_blocks_in_turns_and_one_waits_while_the_other_trains(
    sources: Path,  # noqa: F811
    machine_zygote: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(environment.ZYGOTE, str(machine_zygote))
    found = titan_speed.take_turns(toy(1000000), sources, 3, 4)
    turns = sorted((block, system) for system, blocks in found.items() for block in blocks)
    assert [system for _, system in turns] == [PEER, OURS, OURS, PEER, PEER, OURS]
    for (one, _), (next_one, _) in itertools.pairwise(turns):
        assert one.first_ns < one.last_ns < next_one.first_ns


def test_the_ratio_is_that_of_the_blocks_of_each_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(load, "look", lambda: load.Load(0.25, 0.0))
    ours = [Block(0, (100 + number) * MS) for number in range(10)]
    peer = [Block(0, block.last_ns * 2) for block in ours]
    monkeypatch.setattr(titan_speed, "take_turns", lambda *_: {OURS: ours, PEER: peer})
    assert titan_speed.main(["--sources", str(tmp_path), "--pairs", "10", "--steps", "3"]) == 0
    assert "ratio 2.000, lower 95 % bound 2.000" in capsys.readouterr().out
    text = " ".join(titan_speed.section())
    assert "its mean is at least 2.000" in text
    monkeypatch.setattr(titan_speed, "take_turns", lambda *_: {OURS: peer, PEER: ours})
    assert titan_speed.main(["--sources", str(tmp_path), "--pairs", "10", "--steps", "3", "--no-write"]) == 1


@pytest.mark.processes
def test_a_script_that_ends_is_told_with_what_it_said(
    sources: Path,  # noqa: F811
    machine_zygote: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(environment.ZYGOTE, str(machine_zygote))
    script: PublicScript = toy(2)
    assert titan_speed.main(["--sources", str(sources), "--steps", "3"], script) == 2
    assert "trainmaster took no 3 steps" in capsys.readouterr().err


def test_torchtitan_trains_on_and_saves_nothing() -> None:
    words = titan_speed.lengthened().words
    assert "--checkpoint.enable" not in words
    assert words[words.index("--training.steps") + 1] == "1000000"
