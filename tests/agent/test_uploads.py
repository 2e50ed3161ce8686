"""Uploads that end, that fail and are tried again, and that storage does not answer. No storage is needed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
from typing import Any

import pytest

from trainmaster.agent.shell.saves.upload_queue import Lost, Uploads
from trainmaster.contract.wire import STALLED_AFTER_S


def _uploader(monkeypatch: pytest.MonkeyPatch, upload: Any) -> None:
    module = types.ModuleType("trainmaster.checkpoint.files.upload")
    module.upload = upload  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trainmaster.checkpoint.files.upload", module)


def test_an_upload_is_pending_until_it_ended_and_its_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def upload(message: dict[str, Any], fd: int, **_: Any) -> dict[str, Any]:
        release.wait(10)
        text = os.pread(fd, 100, 0).decode()
        return {"step": message["step"], "round": 2, "manifest_sha256": text, "error": None}

    _uploader(monkeypatch, upload)

    async def scenario() -> None:
        ended: list[tuple[dict[str, Any], str | None]] = []
        uploads = Uploads(lambda message, error: ended.append((message, error)))
        fd = os.memfd_create("shard")
        os.write(fd, b"abc")
        uploads.submit({"step": 7, "round": 2}, fd)
        os.close(fd)
        assert uploads.pending == 1
        assert not await uploads.drained(0)
        release.set()
        assert await uploads.drained(10)
        assert ended == [({"step": 7, "round": 2}, None)]
        (record,) = uploads.take_records()
        assert (record.step, record.round, record.manifest_sha256, record.tier) == (7, 2, "abc", "storage")
        assert uploads.take_records() == []
        uploads.close()

    asyncio.run(scenario())


def test_an_uploader_that_breaks_is_a_failed_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(message: dict[str, Any], fd: int, **_: Any) -> dict[str, Any]:
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
    _uploader(monkeypatch, lambda message, fd, **_: {"step": 1, "round": 1, "manifest_sha256": "", "error": ""})

    async def scenario() -> None:
        uploads = Uploads(lambda *_: None)
        fd = os.memfd_create("shard")
        uploads.submit({"step": 1}, fd)
        os.close(fd)
        assert await uploads.drained(10)
        assert uploads.take_records() == []
        uploads.close()

    asyncio.run(scenario())


class Storage:
    """What the uploader of a test meets: it fails or waits as it is told, and notes what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = ""
        self.why = "storage"
        self.open = threading.Event()
        self.open.set()
        self.attempts: list[int] = []
        self.abandoned: list[int] = []
        _uploader(monkeypatch, self.upload)
        module = sys.modules["trainmaster.checkpoint.files.upload"]
        module.abandon = lambda message, error: self.abandoned.append(message["step"])  # type: ignore[attr-defined]

    def upload(self, message: dict[str, Any], fd: int, **asked: Any) -> dict[str, Any]:
        self.attempts.append(message["step"])
        error = self.error
        asked["moved"]()
        self.open.wait(10)
        step = {"step": message["step"], "round": message["round"]}
        if not error:
            return {**step, "manifest_sha256": "abc", "error": "", "stored": True}
        if not asked["tried_again"]():
            self.abandoned.append(message["step"])
        return {**step, "manifest_sha256": "", "error": error, "why": self.why, "stored": False}


def test_the_newest_checkpoint_stays_known_whatever_ends_or_fails_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch)

    async def scenario() -> None:
        told = Told()
        uploads = Uploads(told, pause_s=(10.0, 10.0))
        assert uploads.newest_saved is None
        for at, (step, round, error) in enumerate([(7, 1, ""), (9, 2, ""), (8, 1, ""), (10, 2, "no space left")]):
            storage.error = error
            submit(uploads, step, round=round)
            await told.until(at + 1)
        newest = uploads.newest_saved
        assert newest is not None
        assert (newest.round, newest.step, newest.error) == (2, 9, "")
        uploads.close()

    asyncio.run(scenario())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Told:
    """What `Uploads` says, to wait for."""

    def __init__(self) -> None:
        self.errors: list[str | None] = []
        self._new = asyncio.Event()

    def __call__(self, message: dict[str, Any], error: str | None) -> None:
        self.errors.append(error)
        self._new.set()

    async def until(self, count: int) -> None:
        while len(self.errors) < count:
            self._new.clear()
            await asyncio.wait_for(self._new.wait(), 10)


def submit(uploads: Uploads, step: int, rank: int = 0, round: int = 1) -> None:
    fd = os.memfd_create("shard")
    uploads.submit({"step": step, "round": round, "rank": rank, "storage": "/checkpoints"}, fd)
    os.close(fd)


def test_a_failed_save_is_told_at_once_and_tried_again_until_storage_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch)
    storage.error = "No space left on device"

    async def scenario() -> None:
        told = Told()
        uploads = Uploads(told, pause_s=(0.01, 0.01))
        submit(uploads, 7)
        await told.until(2)
        (record,) = uploads.take_records()  # the same words again are no news
        assert (record.step, record.error) == (7, "No space left on device")
        trouble = uploads.trouble()
        assert trouble is not None
        assert (trouble.step, trouble.error) == (7, "No space left on device")
        assert (uploads.pending, uploads.under_way, uploads.lost(1)) == (1, 0, None)
        storage.error = ""
        await told.until(len(told.errors) + 1)
        while uploads.pending:
            await told.until(len(told.errors) + 1)
        (record,) = uploads.take_records()
        assert (record.error, record.manifest_sha256) == ("", "abc")
        assert (uploads.trouble(), storage.abandoned) == (None, [])
        uploads.close()

    asyncio.run(scenario())


def test_a_newer_save_takes_the_place_of_one_that_fails_and_its_room_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = Storage(monkeypatch)
    storage.error = "No space left on device"

    async def scenario() -> None:
        told = Told()
        uploads = Uploads(told, pause_s=(1000.0, 1000.0))
        submit(uploads, 7)
        submit(uploads, 7, rank=1)
        await told.until(2)
        storage.error = ""
        submit(uploads, 14)
        await told.until(3)
        assert uploads.pending == 1  # that of rank 1, which has no newer one
        submit(uploads, 14, rank=1)
        await told.until(4)
        uploads.close()
        assert (uploads.pending, uploads.lost(1)) == (0, None)

    asyncio.run(scenario())
    assert storage.attempts == [7, 7, 14, 14]
    assert storage.abandoned == [7, 7]


def test_what_is_given_up_is_lost_with_the_words_of_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch)
    storage.error = "No space left on device"

    async def scenario() -> None:
        told, clock = Told(), Clock()
        uploads = Uploads(told, clock, pause_s=(1000.0, 1000.0))
        submit(uploads, 7)
        await told.until(1)
        clock.now += 100
        assert uploads.left_s(900, waited_s=50) == 850
        assert uploads.left_s(900, waited_s=500) == 800
        uploads.give_up(failing_only=True, below_round=1)
        assert uploads.pending == 1
        uploads.give_up()
        assert (uploads.pending, uploads.left_s(900, 500)) == (0, None)
        assert uploads.lost(1) == Lost(1, 0, 7, "No space left on device")
        assert uploads.lost(2) is None
        uploads.close()

    asyncio.run(scenario())


def test_an_agent_does_not_wait_at_its_end_for_a_storage_that_does_not_give_room_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = Storage(monkeypatch)
    storage.error = "Input/output error"
    asked, answers = threading.Event(), threading.Event()

    def abandon(message: dict[str, Any], error: str) -> None:
        asked.set()
        answers.wait(20)

    sys.modules["trainmaster.checkpoint.files.upload"].abandon = abandon  # type: ignore[attr-defined]

    async def scenario() -> None:
        told = Told()
        uploads = Uploads(told, pause_s=(1000.0, 1000.0))
        submit(uploads, 7)
        await told.until(1)
        uploads.give_up()
        await asyncio.to_thread(asked.wait, 20)
        assert not await uploads.drained(0.0)
        assert uploads.stuck
        answers.set()
        assert await uploads.drained(20)
        assert not uploads.stuck
        uploads.close()

    asyncio.run(scenario())


def test_a_save_whose_round_is_replaced_is_lost_at_once_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch)
    storage.error, storage.why = "round 2 has taken the storage", "fenced"

    async def scenario() -> None:
        told = Told()
        uploads = Uploads(told, pause_s=(1000.0, 1000.0))
        submit(uploads, 7)
        await told.until(1)
        lost = uploads.lost(1)
        assert lost is not None
        assert (uploads.pending, lost.fenced) == (0, True)
        uploads.close()

    asyncio.run(scenario())


def test_a_storage_that_does_not_answer_fills_no_memory_and_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch)
    storage.open.clear()

    async def scenario() -> None:
        told, clock = Told(), Clock()
        uploads = Uploads(told, clock)
        for step in range(1, 5):
            submit(uploads, step)  # one for each thread
        while len(storage.attempts) < 4:
            await asyncio.sleep(0)
        assert uploads.trouble() is None
        clock.now += STALLED_AFTER_S
        for step in range(5, 9):
            submit(uploads, step)
        assert uploads.pending == 5
        assert [record.step for record in uploads.take_records()] == [5, 6, 7]
        trouble = uploads.trouble()
        assert trouble is not None
        assert (trouble.storage, trouble.still_s, trouble.error) == ("/checkpoints", STALLED_AFTER_S, "")
        uploads.give_up()
        lost = uploads.lost(1)
        assert lost is not None
        assert (lost.step, lost.error) == (8, "/checkpoints has not answered for 60 s")
        assert uploads.stuck
        storage.open.set()
        uploads.close()

    asyncio.run(scenario())
