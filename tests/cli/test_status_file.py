"""status.yaml of a run: a disk that takes nothing stops no training, and a person is told once."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from trainmaster.contract.wire import atomic_replace
from trainmaster_operator.cli.display.piece_of_news import News
from trainmaster_operator.cli.run.status_file import StatusFile
from trainmaster_operator.cluster.port import Object


class Disk:
    """Takes what it is given, unless it is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.holds: Object = {}

    def write_status(self, resource: Object) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.holds = resource


def test_a_full_disk_is_told_once_and_is_tried_again_with_the_next_change() -> None:
    disk, told = Disk(), list[News]()
    file = StatusFile(disk, "runs/a/status.yaml", told.append)

    async def write() -> None:
        await file.write({"at": 1})
        disk.is_full = True
        for at in (2, 3):
            await file.write({"at": at})
            assert file.stale
        assert disk.holds == {"at": 1}
        disk.is_full = False
        await file.write({"at": 4})

    asyncio.run(write())
    file.close()
    assert [news.text for news in told] == ["runs/a/status.yaml can't be written: no space left on device"]
    assert (disk.holds, file.stale) == ({"at": 4}, "")


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "status.yaml"
    atomic_replace.replace(file, b"old")

    def half(self: Path, data: bytes) -> None:
        with open(self, "wb") as written:
            written.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space left"):
        atomic_replace.replace(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["status.yaml"]
    assert file.read_text() == "old"
