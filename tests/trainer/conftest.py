from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.job import Job, Undisturbed
from tests.trainer.ranks import Ranks, shared


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tensors of tests are small, and two workers share a machine: a second thread would only wait, and busily."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """Worlds of real ranks; torch is imported once for all of them."""
    return shared()


@pytest.fixture(scope="session")
def compiling_ranks(ranks: Ranks) -> Ranks:
    """The same; what compiles is imported once, too."""
    ranks.preload_compiler()
    return ranks


@pytest.fixture(scope="session")
def undisturbed(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, text: Path) -> Undisturbed:
    """undisturbed(world_size, **training): a job that has been trained from its first to its last step in one round.
    It is trained once for all tests that compare theirs with it."""
    trained: dict[str, Job] = {}

    def train(world_size: int = 2, **training: Any) -> Job:
        key = json.dumps([world_size, training], sort_keys=True)
        if key not in trained:
            job = Job(ranks, tmp_path_factory.mktemp("undisturbed"), text, **training)
            outcome = job.round(1, world_size)
            assert outcome.codes == [0] * world_size, outcome.output
            trained[key] = job
        return trained[key]

    return train


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("".join(f"the number {n} is followed by {n + 1}\n" for n in range(2000)))
    return folder
