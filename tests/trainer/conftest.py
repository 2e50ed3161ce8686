from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch

from tests.trainer.job import Job, Undisturbed
from tests.trainer.ranks import Ranks, shared


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors of tests are small, and two workers share a machine: a second thread would only wait, and busily.

    Tests of other folders that run on the same worker have the threads that they would have without these tests.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
def undisturbed(ranks: Ranks, common_folder: Path, text: Path) -> Undisturbed:
    """undisturbed(world_size, **training): a job that has been trained from its first to its last step in one round.
    It is trained once for all tests that compare theirs with it, those of other workers too."""

    def train(world_size: int = 2, **training: Any) -> Job:
        key = hashlib.sha256(json.dumps([world_size, training], sort_keys=True).encode()).hexdigest()[:16]
        job = Job(ranks, common_folder / f"undisturbed-{key}", text, **training)
        with _locked(common_folder / f"undisturbed-{key}.lock") as lock:
            if not lock.read():
                outcome = job.round(1, world_size)
                assert outcome.codes == [0] * world_size, outcome.output
                lock.write("trained")
        return job

    return train


@pytest.fixture(scope="session")
def text(common_folder: Path) -> Path:
    folder = common_folder / "text"
    folder.mkdir(exist_ok=True)
    with _locked(common_folder / "text.lock") as lock:
        if not lock.read():
            (folder / "a.txt").write_text("".join(f"the number {n} is followed by {n + 1}\n" for n in range(2000)))
            lock.write("written")
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[TextIO]:
    """A file that one worker at a time reads and writes."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file
