"""Each field of the training config changes what is built, what is computed or what is left behind.

A field that merely arrives somewhere doesn't count. What can't have an effect is refused: tests/api/test_unused.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from tests.api.jobs import TRAINMASTER, job
from tests.trainer import fields_probe
from tests.trainer.fields import ROWS, Row, leaves
from tests.trainer.ranks import Ranks
from trainmaster.contract.wire import environment
from trainmaster_operator.api.validation.job_validation import validate


def test_each_field_has_a_row_and_each_row_a_field() -> None:
    assert sorted(row.field for rows in ROWS.values() for row in rows) == sorted(leaves())


@pytest.mark.parametrize("count", ROWS)
def test_what_a_row_trains_is_a_job_that_anybody_may_have(count: int) -> None:
    refused = {}
    for row in ROWS[count]:
        for training in (row.without(), row.trained()):
            saved = {"spec__checkpoint": training.pop("checkpoint")} if "checkpoint" in training else {}
            document = job(TRAINMASTER, spec__workers={"replicas": count}, spec__training=training, **saved)
            if problems := validate(document):
                refused[row.field] = [str(problem) for problem in problems]
    assert refused == {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With texts that are not alike, and the same as tokens."""
    for name, words in (("one", "is followed by"), ("two", "comes long before")):
        own = tmp_path / "data" / name
        own.mkdir(parents=True)
        for letter in "ab":
            text = "".join(f"{letter}: {n} {words} {n + 1}\n" for n in range(30))
            (own / f"{letter}.txt").write_text(text)
        np.save(own / "c.npy", np.arange(2000, dtype=np.uint16) % 251)
    return tmp_path


@pytest.mark.processes
@pytest.mark.parametrize("count", ROWS)
def test_each_field_changes_what_it_is_for(ranks: Ranks, folder: Path, count: int) -> None:
    asked = {key(config, row): {"config": config, "build": row.build} for row in ROWS[count] for config in both(row)}
    found = dict(zip(asked, seen(ranks, folder, count, [*asked.values()]), strict=True))
    unheard = []
    for row in ROWS[count]:
        before, after = (found[key(config, row)][row.shows] for config in both(row))
        if before == after:
            unheard.append(row.field)
    assert unheard == []


@pytest.mark.processes
def test_two_trainings_of_the_same_config_show_no_difference(ranks: Ranks, folder: Path) -> None:
    """Else the test above couldn't fail."""
    configs = [row.trained() for row in ROWS[1] if row.shows != "built"][::8]
    found = seen(ranks, folder, 1, [{"config": config, "build": False} for config in configs for _ in range(2)])
    assert found[::2] == found[1::2]


def seen(ranks: Ranks, folder: Path, count: int, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What can be seen of each training, on rank 0."""
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in asked]
    each = [{**training, "port": store.port} for training, store in zip(asked, stores, strict=True)]
    (folder / "asked.json").write_text(json.dumps(each))
    variables = {environment.OUTPUT_DIR: str(folder), environment.ROUND: "1"}
    outcome = ranks.run(folder, count, variables, script=fields_probe.__file__)
    assert outcome.codes == [0] * count, outcome.output
    return [json.loads((folder / f"found-{number}.json").read_text()) for number in range(len(asked))]


def both(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    return row.without(), row.trained()


def key(config: dict[str, Any], row: Row) -> str:
    """Configs that several rows have are trained once."""
    return json.dumps([config, row.build], sort_keys=True)
