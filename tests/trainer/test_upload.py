from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.trainer.shards import put
from trainmaster.checkpoint.files import checkpoint_manifest, lineage
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.contract.wire.checkpoint_format import Lineage


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    storage = PosixStorage(tmp_path / "checkpoints")
    lineage.begin(storage, Lineage(1, None))
    return storage


class Full(PosixStorage):
    """A storage on which shards don't fit."""

    def write(self, path, blocks):
        next(iter(blocks))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_whoever_sees_all_receipts_completes_the_checkpoint(storage: PosixStorage) -> None:
    first, second = put(storage.root, 4, 1, rank=1, world_size=2), put(storage.root, 4, 1, rank=0, world_size=2)
    assert (first["committed"], first["error"]) == (False, "")
    assert second["committed"]
    assert len(second["manifest_sha256"]) == 64
    assert set(storage.list("step-4.r1")) == {
        "manifest.json", "rank-00000.safetensors", "rank-00001.safetensors", "receipt-00000.json", "receipt-00001.json",
    }  # fmt: skip


def test_a_shard_that_is_there_is_never_overwritten(storage: PosixStorage) -> None:
    put(storage.root, 4, 1)
    shard = Path(storage.root, "step-4.r1", "rank-00000.safetensors")
    before = shard.stat().st_mtime_ns
    again = put(storage.root, 4, 1)
    assert again["committed"]
    assert shard.stat().st_mtime_ns == before


def test_an_upload_gives_up_once_a_newer_round_has_the_storage(storage: PosixStorage) -> None:
    put(storage.root, 4, 1, rank=0, world_size=2)
    lineage.begin(storage, Lineage(2, None))
    late = put(storage.root, 4, 1, rank=1, world_size=2)
    assert not late["committed"]
    assert "round 2 has taken the storage" in late["error"]
    assert "manifest.json" not in storage.list("step-4.r1")


def test_a_late_checkpoint_is_an_orphan_wherever_it_lands(storage: PosixStorage) -> None:
    """Two worlds on one storage: the old one was past the fence check when the new one took over."""
    put(storage.root, 4, 1)
    for rank in range(2):
        put(storage.root, 8, 1, rank=rank, world_size=2)
    Path(storage.root, "step-8.r1", "manifest.json").rename(Path(storage.root, "hidden"))
    lineage.begin(storage, Lineage(2, "step-4.r1"))
    Path(storage.root, "hidden").rename(Path(storage.root, "step-8.r1", "manifest.json"))
    assert lineage.candidates(storage, 3, "", "Auto") == ["step-4.r1"]
    put(storage.root, 6, 2)
    assert lineage.candidates(storage, 3, "", "Auto") == ["step-6.r2", "step-4.r1"]


def test_an_upload_that_comes_late_counts_up_to_the_step_that_the_new_round_resumed_from(storage: PosixStorage) -> None:
    put(storage.root, 4, 1)
    lineage.begin(storage, Lineage(2, "step-9.r1"))  # which only memory has
    late = put(storage.root, 8, 1)
    assert (late["committed"], late["error"]) == (True, "")
    assert put(storage.root, 12, 1)["why"] == "fenced"
    assert lineage.candidates(storage, 3, "", "Auto") == ["step-8.r1", "step-4.r1"]
    lineage.begin(storage, Lineage(3, "step-4.r1"))
    assert put(storage.root, 9, 1)["why"] == "fenced"


def test_a_full_disk_is_told_and_leaves_nothing_that_could_be_chosen(storage: PosixStorage) -> None:
    put(storage.root, 4, 1)
    put(storage.root, 8, 1, rank=0, world_size=2)
    failed = put(storage.root, 8, 1, rank=1, world_size=2, storage=Full(storage.root))
    assert "No space left on device" in failed["error"]
    assert not failed["committed"]
    assert set(storage.list("step-8.r1")) == {"abandoned.json"}
    # The other rank's upload may come after the failure: it gives up too.
    late = put(storage.root, 8, 1, rank=0, world_size=2)
    assert "another rank" in late["error"]
    assert "manifest.json" not in storage.list("step-8.r1")
    assert put(storage.root, 12, 1, keep=2)["committed"]
    assert set(storage.list()) == {"lineage", "step-4.r1", "step-12.r1"}


def test_a_shard_that_will_be_tried_again_keeps_those_of_other_ranks_where_they_are(storage: PosixStorage) -> None:
    put(storage.root, 8, 1, rank=0, world_size=2)
    full = Full(storage.root)
    failed = put(storage.root, 8, 1, rank=1, world_size=2, storage=full, tried_again=True)
    assert (failed["why"], failed["stored"]) == ("storage", False)
    assert "abandoned.json" not in storage.list("step-8.r1")
    assert put(storage.root, 8, 1, rank=1, world_size=2)["committed"]


def test_only_a_failure_of_the_storage_is_worth_another_try(storage: PosixStorage) -> None:
    put(storage.root, 8, 1, rank=1, world_size=2, storage=Full(storage.root))
    assert put(storage.root, 8, 1, rank=0, world_size=2, tried_again=True)["why"] == "other rank"
    lineage.begin(storage, Lineage(2, None))
    assert put(storage.root, 12, 1, tried_again=True)["why"] == "fenced"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_really_full_is_told_and_gets_its_room_back(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=False)
    if made.returncode:
        pytest.skip("this machine doesn't let root mount")
    try:
        storage = PosixStorage(mount)
        lineage.begin(storage, Lineage(1, None))
        (mount / "ballast").write_bytes(b"x" * 32 * 1024)
        with pytest.raises(OSError, match="No space"):
            (mount / "more").write_bytes(b"x" * 64 * 1024)
        failed = put(mount, 4, 1)
        assert "No space left on device" in failed["error"]
        assert not any(name.endswith(".safetensors") for name in storage.list("step-4.r1"))
        (mount / "more").unlink()
        assert put(mount, 8, 1)["committed"]
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_retention_keeps_the_newest_of_the_chain_and_clears_what_is_older(storage: PosixStorage) -> None:
    for step in (2, 4, 6):
        put(storage.root, step, 1, keep=2)
    assert set(storage.list()) == {"lineage", "step-4.r1", "step-6.r1"}
    put(storage.root, 7, 1, rank=0, world_size=2)  # never completed
    lineage.begin(storage, Lineage(2, "step-4.r1"))
    put(storage.root, 8, 2, keep=2)
    assert set(storage.list()) == {"lineage", "step-4.r1", "step-8.r2"}
    put(storage.root, 9, 2, keep=1)
    assert set(storage.list()) == {"lineage", "step-9.r2"}


def test_retention_spares_what_an_earlier_round_may_still_upload(storage: PosixStorage) -> None:
    put(storage.root, 4, 1, keep=2)
    put(storage.root, 8, 1, rank=0, world_size=2)  # on its way
    lineage.begin(storage, Lineage(2, "step-9.r1"))  # which only memory has
    put(storage.root, 12, 2, keep=2)
    assert set(storage.list()) == {"lineage", "step-4.r1", "step-8.r1", "step-12.r2"}
    assert put(storage.root, 8, 1, rank=1, world_size=2, keep=2)["committed"]
    put(storage.root, 16, 2, keep=2)
    put(storage.root, 17, 2, rank=0, world_size=2)  # on its way
    assert set(storage.list()) == {"lineage", "step-12.r2", "step-16.r2", "step-17.r2"}
    lineage.begin(storage, Lineage(3, "step-18.r2"))
    for step in (20, 24):
        put(storage.root, step, 3, keep=2)
    assert set(storage.list()) == {"lineage", "step-20.r3", "step-24.r3"}


def test_a_checkpoint_that_is_removed_while_it_is_written_is_never_complete(storage: PosixStorage) -> None:
    class Removed(PosixStorage):
        """A storage on which a newer checkpoint is completed just before the receipt of this one is written."""

        def create_exclusive(self, path: str, data: bytes) -> bool:
            if path == "step-4.r1/receipt-00000.json":
                put(storage.root, 8, 1, keep=1)
            return super().create_exclusive(path, data)

    late = put(storage.root, 4, 1, storage=Removed(storage.root))
    assert (late["committed"], late["why"]) == (False, "fenced")
    assert "newer checkpoints are complete" in late["error"]
    assert set(storage.list()) == {"lineage", "step-8.r1"}


def test_retention_spares_the_best_checkpoint_until_there_is_a_better_one(storage: PosixStorage) -> None:
    for step, best in ((2, 2), (4, 4), (6, 4), (8, 4)):
        put(storage.root, step, 1, keep=1, evaluation={"keep": best})
    assert set(storage.list()) == {"lineage", "step-4.r1", "step-8.r1"}
    put(storage.root, 10, 1, rank=0, world_size=2)  # on its way
    put(storage.root, 12, 1, keep=1, evaluation={"keep": 10})
    assert set(storage.list()) == {"lineage", "step-10.r1", "step-12.r1"}
    put(storage.root, 14, 1, keep=1, evaluation={"best_step": 12})
    assert set(storage.list()) == {"lineage", "step-14.r1"}


def test_a_checkpoint_whose_uploader_died_before_the_manifest_can_still_be_completed(storage: PosixStorage) -> None:
    for rank in range(2):
        put(storage.root, 4, 1, rank=rank, world_size=2)
    manifest = Path(storage.root, "step-4.r1", "manifest.json")
    whole = manifest.read_bytes()
    manifest.unlink()
    assert checkpoint_manifest.commit(storage, "step-4.r1") is not None
    assert manifest.read_bytes() == whole
