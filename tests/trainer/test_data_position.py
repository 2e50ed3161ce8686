"""The position of a run in its data: where it continues, and what it says if the order is another one now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainmaster import data
from trainmaster.contract.config import TrainingConfig
from trainmaster.data import data_position
from trainmaster.errors import DataError


def source(folder: Path, context: int = 8, seed: int = 0, **options: Any) -> data.Source:
    return data.build(
        TrainingConfig.model_validate(
            {
                "model": {"options": {"context": context, "width": 8, "heads": 2}},
                "data": {"path": str(folder), "options": options},
                "steps": 10,
                "batch": {"global": 4},
                "seed": seed,
            }
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 256)) * 4)
    return tmp_path


def events(before: data.Source, now: data.Source, asked: Sequence[tuple[int, int]] = (), **cursor: Any) -> list[str]:
    said: list[str] = []
    position = {**data_position.write(before, 20), **cursor}

    def say(reason: str, words: str) -> None:
        said.append(f"{reason}: {words}")

    assert data_position.read(now, position, "checkpoint x", say, asked) == 20
    return said


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"context": 16}, "model.options.context"),
        ({"shardBytes": 128}, "the size of a shard (data.options)"),
        ({"seed": 1}, "training.seed"),
    ],
    ids=str,
)
def test_a_run_says_that_its_samples_come_in_another_order_than_those_of_its_checkpoint(
    folder: Path, changed: dict[str, Any], cause: str
) -> None:
    before, now = source(folder), source(folder, **changed)
    assert before.fingerprint == now.fingerprint
    assert before.batch(20, range(4)).inputs.tolist() != now.batch(20, range(4)).inputs.tolist()
    (said,) = events(before, now)
    assert said.startswith(f"DataOrderChanged: {cause} has changed since checkpoint x was made, and with it the order")


@pytest.mark.parametrize(
    ("skipped", "asked", "count"), [([[4, 8]], [], 4), ([], [(24, 28)], 4), ([[4, 8]], [(4, 8), (24, 28)], 8)]
)
def test_a_run_says_that_other_samples_are_skipped_now_than_those_that_diverged(
    folder: Path, skipped: list[list[int]], asked: list[tuple[int, int]], count: int
) -> None:
    before, now = source(folder), source(folder, context=16)
    (said,) = events(before, now, asked, skipped=skipped)
    assert said.endswith(f"so the {count} that diverged are not skipped any more, and others are")
    assert "skip" not in events(before, now)[0]
    assert events(before, source(folder), asked, skipped=skipped) == []


def test_a_run_whose_order_is_the_same_says_nothing(folder: Path) -> None:
    assert events(source(folder), source(folder)) == []
    # All data are one shard in both.
    assert events(source(folder), source(folder, shardBytes=2**20)) == []
    # Checkpoints of earlier releases do not tell it.
    assert events(source(folder), source(folder, seed=1), source={}) == []


def test_other_data_are_refused(folder: Path, tmp_path: Path) -> None:
    position = data_position.write(source(folder), 20)
    (folder / "b.txt").write_bytes(b"more")
    with pytest.raises(DataError, match=r"the data has changed since checkpoint x was made"):
        data_position.read(source(folder), position, "checkpoint x")
