"""Which checkpoint the ranks of a round agree on, and whether they wait for uploads before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from tests.trainer.shards import put, shard_bytes
from trainmaster.checkpoint.files import lineage
from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.checkpoint.memory.nearest_memory_copy import Memory, RamFile
from trainmaster.checkpoint.state import resume, waits_before_resume
from trainmaster.checkpoint.state.resume_conditions import Resume
from trainmaster.contract.wire import Control
from trainmaster.contract.wire.checkpoint_format import Lineage, Receipt, ShardFile, shard_name

HELD = "step-8.r1"
"""What memory has. Storage has step 4 of the same round."""


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    storage = PosixStorage(tmp_path)
    lineage.begin(storage, Lineage(1, None))
    put(storage.root, 4, 1)
    return storage


def chosen(storage: PosixStorage, uploads_step: int, tier: str, uploads: Callable[[], Any]) -> Any:
    """What rank 0 chooses if memory has step 8, of which all ranks find their parts (`tier`) or not ("")."""
    turns = SimpleNamespace(
        inventory=SimpleNamespace(directories=lambda: [HELD], uploads_step=uploads_step),
        part=SimpleNamespace(opened=None),
        held=lambda directory, whole: tier,
        stored=lambda *_: None,
        await_uploads=uploads,
    )
    return resume._choose(storage, turns, 2, Resume(2), lambda reason, message: None)


@pytest.mark.parametrize("uploads_step", [0, 6, 8])
def test_nobody_waits_for_uploads_of_what_memory_has(storage: PosixStorage, uploads_step: int) -> None:
    found = chosen(storage, uploads_step, "ram", lambda: pytest.fail("it waits"))
    assert found == (storage.root, HELD, "ram")


@pytest.mark.parametrize(("uploads_step", "tier"), [(12, "ram"), (6, "")], ids=["newer upload", "a part is lost"])
def test_otherwise_what_was_uploaded_meanwhile_is_chosen(storage: PosixStorage, uploads_step: int, tier: str) -> None:
    found = chosen(storage, uploads_step, tier, lambda: put(storage.root, 12, 1))
    assert found == (storage.root, "step-12.r1", "storage")


def test_without_memory_each_rank_waits_for_the_uploads_of_its_machine_once(storage: PosixStorage) -> None:
    store, waited = dist.HashStore(), []

    def agree(rank: int) -> tuple[int, Any]:
        def await_uploads() -> None:
            waited.append(rank)

        return resume.agree(storage, store, rank, 3, Resume(2), print, uploads_step=6, await_uploads=await_uploads)

    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(agree, range(3))]
    assert sorted(waited) == [0, 1, 2]
    assert {(round, checkpoint.directory) for round, checkpoint in found} == {(2, "step-4.r1")}


@pytest.mark.parametrize(("rank_in_memory", "evaluated"), [(0, 4), (1, 8)])
def test_ranks_that_load_from_memory_and_from_storage_know_of_the_same_evaluations(
    tmp_path: Path, rank_in_memory: int, evaluated: int
) -> None:
    """Memory has the state from before the evaluation of step 8, storage from after it. Rank 0's word counts."""
    storage = PosixStorage(tmp_path / "storage")
    lineage.begin(storage, Lineage(1, None))
    for rank in range(2):
        put(storage.root, 8, 1, rank, 2, evaluation={"step": 8})
    folders = [RamFolder(tmp_path / f"memory-{rank}", 1 << 20) for rank in range(2)]
    data = shard_bytes(8, rank_in_memory, 2, evaluation={"step": 4})
    file = ShardFile(shard_name(rank_in_memory), len(data), checksum=checksum(data))
    (tmp_path / "arrived").write_bytes(data)
    receipt = Receipt(8, 1, rank_in_memory, 2, file, {}, shard=f"shard {rank_in_memory}")
    folders[rank_in_memory].adopt(8, 1, rank_in_memory, tmp_path / "arrived", receipt)
    store = dist.HashStore()

    def agree(rank: int) -> Any:
        memory = Memory(folders[rank], f"shard {rank}")
        return resume.agree(storage, store, rank, 2, Resume(2), print, memory)[1]

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(agree, range(2))]
    assert [isinstance(checkpoint.storage, RamFile) for checkpoint in found] == [
        rank_in_memory == 0,
        rank_in_memory == 1,
    ]
    assert [checkpoint.manifest.evaluation for checkpoint in found] == [{"step": evaluated}] * 2
    assert {checkpoint.manifest.data["consumed"] for checkpoint in found} == {64}


def test_uploads_that_last_too_long_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits_before_resume, "DEADLINE_S", 0.0)
    told: list[tuple[str, str]] = []
    reporter: Any = SimpleNamespace(
        control=lambda: Control(uploads_pending=2, ranks_ending=1),
        event=lambda reason, message: told.append((reason, message)),
        beat=lambda: None,
    )
    waits_before_resume.await_ranks(reporter)
    assert not told
    waits_before_resume.await_uploads(reporter)
    assert told == [("UploadsPending", "2 uploads are still under way: resuming without them")]
