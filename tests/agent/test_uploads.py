from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
from typing import Any

import pytest

from trainmaster.agent.uploads import Uploads


def _uploader(monkeypatch: pytest.MonkeyPatch, upload: Any) -> None:
    module = types.ModuleType("trainmaster.checkpoint.upload")
    module.upload = upload  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trainmaster.checkpoint.upload", module)


def test_an_upload_is_pending_until_it_ended_and_its_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def upload(message: dict[str, Any], fd: int) -> dict[str, Any]:
        release.wait(10)
        text = os.pread(fd, 100, 0).decode()
        return {"step": message["step"], "round": 2, "manifest_sha256": text, "error": None}

    _uploader(monkeypatch, upload)

    async def scenario() -> None:
        ended: list[tuple[dict[str, Any], str | None]] = []
        uploads = Uploads(lambda message, error: ended.append((message, error)))
        fd = os.memfd_create("shard")
        os.write(fd, b"abc")
        uploads.submit({"step": 7}, fd)
        os.close(fd)
        assert uploads.pending == 1
        assert not await uploads.drained(0)
        release.set()
        assert await uploads.drained(10)
        assert ended == [({"step": 7}, None)]
        (record,) = uploads.take_records()
        assert (record.step, record.round, record.manifest_sha256, record.tier) == (7, 2, "abc", "storage")
        assert uploads.take_records() == []
        uploads.close()

    asyncio.run(scenario())


def test_an_uploader_that_breaks_is_a_failed_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(message: dict[str, Any], fd: int) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    _uploader(monkeypatch, upload)

    async def scenario() -> None:
        errors: list[str | None] = []
        uploads = Uploads(lambda _, error: errors.append(error))
        fd = os.memfd_create("shard")
        uploads.submit({"step": 7, "round": 3}, fd)
        os.close(fd)
        assert await uploads.drained(10)
        (record,) = uploads.take_records()
        assert "No space left" in record.error
        assert errors == [record.error]
        uploads.close()

    asyncio.run(scenario())


def test_a_receipt_without_a_manifest_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    _uploader(monkeypatch, lambda message, fd: {"step": 1, "round": 1, "manifest_sha256": "", "error": ""})

    async def scenario() -> None:
        uploads = Uploads(lambda *_: None)
        fd = os.memfd_create("shard")
        uploads.submit({"step": 1}, fd)
        os.close(fd)
        assert await uploads.drained(10)
        assert uploads.take_records() == []
        uploads.close()

    asyncio.run(scenario())
