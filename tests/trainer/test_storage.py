from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trainmaster.checkpoint.files import storage as storage_module
from trainmaster.checkpoint.files.storage import PosixStorage, open_storage


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    return PosixStorage(tmp_path)


def test_only_one_of_two_creators_wins_and_the_loser_changes_nothing(storage: PosixStorage) -> None:
    assert storage.create_exclusive("a/b.json", b"first")
    assert not storage.create_exclusive("a/b.json", b"second")
    assert storage.read("a/b.json") == b"first"
    assert storage.list("a") == {"b.json": 5}


def test_a_file_system_without_hard_links_still_creates_exclusively(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert storage.create_exclusive("x", b"first")
    assert not storage.create_exclusive("x", b"second")
    assert storage.read("x") == b"first"
    assert os.listdir(storage.root) == ["x"]


def test_without_hard_links_a_full_disk_leaves_no_part_of_a_file(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a lineage file would be taken for a round that owns the storage, and could not be read."""
    room, sync = [False], os.fsync

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    def full(fd: int) -> None:
        if not room[0] and os.readlink(f"/proc/self/fd/{fd}").endswith("/x"):
            raise OSError(errno.ENOSPC, "full")
        sync(fd)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        storage.create_exclusive("x", b"first")
    assert os.listdir(storage.root) == []
    room[0] = True
    assert storage.create_exclusive("x", b"first")


def test_two_threads_that_complete_one_file_both_succeed(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its folder could not be synced. The second call runs while the first one syncs."""
    calls: list[str] = []
    sync_folder = storage_module._sync_folder

    def sync(folder: Path) -> None:
        calls.append(folder.name)
        if len(calls) == 1:
            raise OSError(errno.EIO, "not synced")
        if len(calls) == 2:
            assert storage.create_exclusive("a/x", b"data")
        sync_folder(folder)

    monkeypatch.setattr(storage_module, "_sync_folder", sync)
    with pytest.raises(OSError, match="not synced"):
        storage.create_exclusive("a/x", b"data")
    assert storage.create_exclusive("a/x", b"data")
    assert calls == ["a"] * 3
    assert not storage.create_exclusive("a/x", b"data")


def test_a_write_that_fails_half_way_leaves_nothing(storage: PosixStorage) -> None:
    def blocks():
        yield b"half"
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        storage.write("a/shard", blocks())
    assert os.listdir(Path(storage.root, "a")) == []


def test_a_write_replaces_the_whole_object(storage: PosixStorage) -> None:
    storage.write("x", [b"a much longer text"])
    assert storage.write("x", [b"short", memoryview(b"er")]) == 7
    assert storage.read("x") == b"shorter"
    assert storage.read("x", 2, 4) == b"or"


def test_lists_show_neither_writes_under_way_nor_missing_folders(storage: PosixStorage) -> None:
    storage.write("folder/x", [b"1"])
    Path(storage.root, "folder", ".x.123-4").write_bytes(b"cut off")
    assert storage.list("folder") == {"x": 1}
    assert storage.list() == {"folder": -1}
    assert storage.list("nowhere") == {}


def test_what_is_removed_twice_is_gone_once(storage: PosixStorage) -> None:
    storage.write("folder/x", [b"1"])
    storage.remove("folder")
    storage.remove("folder")
    assert storage.list() == {}


def test_paths_cannot_leave_the_root(storage: PosixStorage) -> None:
    with pytest.raises(ValueError, match="leaves its root"):
        storage.read("../secret")


def test_an_unknown_scheme_is_refused_in_words(tmp_path: Path) -> None:
    assert open_storage(f"file://{tmp_path}").root == str(tmp_path)
    with pytest.raises(ValueError, match="gs:// isn't supported"):
        open_storage("gs://bucket/run")
