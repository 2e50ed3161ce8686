"""Uploads staged shards to storage. Uploads outlive the ranks that staged them: the death of a rank cancels none.

If storage fails, for example because it is full, the newest save of each rank stays in memory and is retried until
storage accepts it, a newer save replaces it, or the waiting process gives it up. If storage does not answer at all, at
most one further save of each rank waits behind those that are stuck.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainmaster.contract.wire import STALLED_AFTER_S, CheckpointRecord, UploadReport

_AT_ONCE = 4
_PAUSE_S = (1.0, 30.0)  # before a failed upload is tried again: the first and the longest
_TOLD_AFTER_S = 5.0  # an upload that has not moved for so long is told to the operator


@dataclass(eq=False)
class _Upload:
    """One staged shard in the memory file `fd`. Times are those of the clock of `Uploads`."""

    message: dict[str, Any]
    fd: int
    staged_at: float
    moved_at: float  # when it last wrote something, or was begun
    pause_s: float
    work: Future[dict[str, Any]] | None = None  # its attempt that waits or runs
    timer: asyncio.TimerHandle | None = None  # until its next attempt
    begun: bool = False
    stored: bool = False
    failed_at: float | None = None  # since when its attempts fail
    error: str = ""
    over: bool = False  # no caller waits for it any more

    @property
    def rank(self) -> int:
        return int(self.message.get("rank", 0))

    @property
    def step(self) -> int:
        return int(self.message.get("step", 0))

    @property
    def round(self) -> int:
        return int(self.message.get("round", 0))

    @property
    def storage(self) -> str:
        return str(self.message.get("storage", ""))

    def waits_s(self, now: float) -> float:
        """Return the seconds for which storage has not accepted it."""
        return now - (self.moved_at if self.failed_at is None else self.failed_at)


@dataclass(frozen=True)
class Lost:
    """The newest save of a rank, which did not reach storage."""

    round: int
    rank: int
    step: int
    error: str
    fenced: bool = False  # a newer round owns the storage


class Uploads:
    """All uploads of an agent.

    `changed(message, error)` is called in the event loop when an upload has ended or failed, with its STAGED message.
    After an error that may pass, `pending` counts the upload until it is given up.
    """

    def __init__(
        self,
        changed: Callable[[dict[str, Any], str | None], None],
        clock: Callable[[], float] = time.monotonic,
        pause_s: tuple[float, float] = _PAUSE_S,
    ) -> None:
        self._changed = changed
        self._clock = clock
        self._first_pause_s, self._longest_pause_s = pause_s
        self.newest_saved: CheckpointRecord | None = None  # of the checkpoints that this agent has completed
        self._records: list[CheckpointRecord] = []
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload")
        self._open: list[_Upload] = []
        self._newest: dict[int, _Upload] = {}  # of each rank
        self._lost: dict[int, Lost] = {}  # of each rank, while it is its newest
        self._in_threads: set[_Upload] = set()
        self._giving_back: set[Future[None]] = set()  # the room on storage of uploads that were given up
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Return the number of uploads that have not ended, with those that will be retried."""
        return len(self._open)

    @property
    def under_way(self) -> int:
        """Return the number of uploads that have neither ended nor failed.

        A new round waits for them, unless memory has a step that is as new.
        """
        return sum(upload.failed_at is None for upload in self._open)

    @property
    def newest_step(self) -> int:
        """Return the newest step of the uploads that are under way; 0 if none is."""
        return max((upload.step for upload in self._open if upload.failed_at is None), default=0)

    @property
    def stuck(self) -> bool:
        """Return True if a thread still waits for storage."""
        return bool(self._in_threads) or any(work.running() for work in self._giving_back)

    def submit(self, message: dict[str, Any], fd: int) -> None:
        """Upload what lies in the memory file `fd`, which stays the caller's."""
        now = self._clock()
        upload = _Upload(message, os.dup(fd), now, now, self._first_pause_s)
        before = self._newest.get(upload.rank)
        self._newest[upload.rank] = upload
        self._lost.pop(upload.rank, None)
        if before is not None and before.timer is not None:
            self._let_go(before)
        if self._is_stalled():
            self._keep_one_waiting(upload)
        self._open.append(upload)
        self._start(upload)

    def take_records(self) -> list[CheckpointRecord]:
        records, self._records = self._records, []
        return records

    def give_back(self, records: list[CheckpointRecord]) -> None:
        """Keep records whose report did not arrive."""
        self._records[:0] = records

    def trouble(self) -> UploadReport | None:
        """Return the upload that storage has not accepted for the longest time, or None if there is no trouble."""
        now = self._clock()
        slow = [u for u in self._tried() if u.failed_at is not None or u.waits_s(now) >= _TOLD_AFTER_S]
        if not slow:
            return None
        worst = max(slow, key=lambda upload: upload.waits_s(now))
        return UploadReport(worst.rank, worst.step, worst.storage, worst.waits_s(now), worst.error)

    def left_s(self, limit_s: float, waited_s: float) -> float | None:
        """Return the seconds until storage has failed to accept an upload for `limit_s`, or None without any upload.

        Only the last `waited_s` seconds count.
        """
        if not self._open:
            return None
        now = self._clock()
        longest = max((upload.waits_s(now) for upload in self._tried()), default=0.0)
        return limit_s - min(longest, waited_s)

    def give_up(self, *, failing_only: bool = False, below_round: int | None = None) -> None:
        """Wait no longer for what has not ended, or only for what fails, or for what is of an earlier round."""
        now = self._clock()
        silent_s = max((upload.waits_s(now) for upload in self._tried()), default=0.0)
        for upload in [u for u in self._open if below_round is None or u.round < below_round]:
            if failing_only and upload.failed_at is None:
                continue
            error = upload.error or f"{upload.storage} has not answered for {silent_s:.0f} s"
            if self._newest.get(upload.rank) is upload:
                self._lost[upload.rank] = Lost(upload.round, upload.rank, upload.step, error)
            if not upload.error:
                self._record(upload, error)
            self._let_go(upload)

    def lost(self, round: int) -> Lost | None:
        """Return a save of this round that did not reach storage and is the newest of its rank, or None.

        A save that is still under way is not lost.
        """
        lost = [entry for entry in self._lost.values() if entry.round == round]
        return min(lost, key=lambda entry: (not entry.fenced, entry.rank), default=None)

    async def drained(self, timeout_s: float) -> bool:
        """Wait for all that is under way; False if that takes longer."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def close(self) -> None:
        for upload in list(self._open):
            if upload.timer is not None:
                upload.timer.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- inside

    def _tried(self) -> list[_Upload]:
        """Return the uploads that have begun, without those that wait for a thread."""
        return [upload for upload in self._open if upload.begun]

    def _is_stalled(self) -> bool:
        now = self._clock()
        return any(u.failed_at is None and u.waits_s(now) >= STALLED_AFTER_S for u in self._tried())

    def _keep_one_waiting(self, newer: _Upload) -> None:
        """Cancel older waiting saves of the rank, so that memory does not fill while storage does not answer."""
        for upload in [u for u in self._open if u.rank == newer.rank and not u.begun]:
            if upload.work is not None and upload.work.cancel():
                error = f"{upload.storage} does not answer, and the save of step {newer.step} takes its place"
                self._record(upload, f"step {upload.step}, rank {upload.rank}: {error}")
                self._let_go(upload)

    def _start(self, upload: _Upload) -> None:
        upload.timer = None
        loop = asyncio.get_running_loop()

        def ended(work: Future[dict[str, Any]]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no listener any more
                loop.call_soon_threadsafe(self._ended, upload, work)

        upload.work = self._threads.submit(self._attempt, upload)
        upload.work.add_done_callback(ended)
        self._update_idle()

    def _attempt(self, upload: _Upload) -> dict[str, Any]:
        """Upload a shard. It runs in a thread."""

        def moved() -> None:
            upload.moved_at = self._clock()

        upload.moved_at, upload.begun = self._clock(), True
        self._in_threads.add(upload)
        try:
            module = importlib.import_module("trainmaster.checkpoint.files.upload")
            result: dict[str, Any] = module.upload(
                upload.message, upload.fd, moved=moved, tried_again=lambda: self._is_newest(upload)
            )
            return result
        finally:
            self._in_threads.discard(upload)

    def _is_newest(self, upload: _Upload) -> bool:
        return not upload.over and self._newest.get(upload.rank) is upload

    def _ended(self, upload: _Upload, work: Future[dict[str, Any]]) -> None:
        upload.work = None
        if work.cancelled():
            os.close(upload.fd)
            return
        failure = work.exception()
        result = {"error": f"{type(failure).__name__}: {failure}"} if failure is not None else work.result()
        error = result.get("error") or ""
        manifest = result.get("manifest_sha256") or ""
        upload.stored = bool(result.get("stored"))
        if manifest or (error and error != upload.error and not upload.over):
            self._record(upload, error, manifest, cascade=result.get("why") == "other rank")
        upload.error = error
        if upload.over:
            os.close(upload.fd)
            return
        newest = self._is_newest(upload)
        if error and newest and result.get("why") == "storage":
            if upload.failed_at is None:
                upload.failed_at = self._clock()
            upload.timer = asyncio.get_running_loop().call_later(upload.pause_s, self._start, upload)
            upload.pause_s = min(2 * upload.pause_s, self._longest_pause_s)
        else:
            if error and newest:
                fenced = result.get("why") == "fenced"
                self._lost[upload.rank] = Lost(upload.round, upload.rank, upload.step, error, fenced)
            self._open.remove(upload)
            upload.over = True
            os.close(upload.fd)
        self._update_idle()
        self._changed(upload.message, error or None)

    def _let_go(self, upload: _Upload) -> None:
        """Stop waiting for an upload. A thread that runs it cannot be stopped; its result is ignored."""
        self._open.remove(upload)
        upload.over = True
        if upload.timer is not None:
            upload.timer.cancel()
            upload.timer = None
            if not upload.stored:
                self._give_room_back(upload)
            os.close(upload.fd)
        self._update_idle()

    def _give_room_back(self, upload: _Upload) -> None:
        """Remove from storage what there is of an upload, in a thread: storage may not answer."""
        loop = asyncio.get_running_loop()

        def ended(work: Future[None]) -> None:
            self._giving_back.discard(work)
            self._update_idle()

        def tell(work: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no listener any more
                loop.call_soon_threadsafe(ended, work)

        work = self._threads.submit(_abandon, upload.message, upload.error)
        self._giving_back.add(work)
        work.add_done_callback(tell)

    def _record(self, upload: _Upload, error: str, manifest: str = "", *, cascade: bool = False) -> None:
        seconds = round(self._clock() - upload.staged_at, 3) if manifest else 0.0
        record = CheckpointRecord(upload.step, upload.round, "storage", manifest, error, cascade, seconds)
        self._records.append(record)
        known = self.newest_saved
        if not error and (known is None or (record.round, record.step) > (known.round, known.step)):
            self.newest_saved = record

    def _update_idle(self) -> None:
        if self.under_way or self._giving_back:
            self._idle.clear()
        else:
            self._idle.set()


def _abandon(message: dict[str, Any], error: str) -> None:
    importlib.import_module("trainmaster.checkpoint.files.upload").abandon(message, error)
