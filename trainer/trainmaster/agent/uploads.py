"""Carries staged shards to storage. Uploads outlive the ranks that staged them: a rank's death cancels none."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainmaster.contract.wire import CheckpointRecord

_AT_ONCE = 4


class Uploads:
    """`ended(message, error)` is called in the event loop when an upload has, with the STAGED message it was for."""

    def __init__(self, ended: Callable[[dict[str, Any], str | None], None]) -> None:
        self.pending = 0
        self._ended = ended
        self._records: list[CheckpointRecord] = []
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload")
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, message: dict[str, Any], fd: int) -> None:
        """Upload what lies in the memory file `fd`, which stays the caller's."""
        self.pending += 1
        self._idle.clear()
        future = asyncio.get_running_loop().run_in_executor(self._threads, _upload, message, os.dup(fd))
        future.add_done_callback(lambda f: self._done(message, f))

    def take_records(self) -> list[CheckpointRecord]:
        records, self._records = self._records, []
        return records

    def give_back(self, records: list[CheckpointRecord]) -> None:
        """Records whose report did not arrive."""
        self._records[:0] = records

    async def drained(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, message: dict[str, Any], future: asyncio.Future[dict[str, Any]]) -> None:
        self.pending -= 1
        if self.pending == 0:
            self._idle.set()
        if future.cancelled():
            return
        failure = future.exception()
        if failure is not None:
            result = {"error": f"{type(failure).__name__}: {failure}"}
        else:
            result = future.result()
        error = result.get("error")
        if error or result.get("manifest_sha256"):
            self._records.append(
                CheckpointRecord(
                    step=int(result.get("step", message.get("step", 0))),
                    round=int(result.get("round", message.get("round", 0))),
                    tier="storage",
                    manifest_sha256=result.get("manifest_sha256") or "",
                    error=error or "",
                )
            )
        self._ended(message, error)


def _upload(message: dict[str, Any], fd: int) -> dict[str, Any]:
    try:
        upload = importlib.import_module("trainmaster.checkpoint.upload").upload
        result: dict[str, Any] = upload(message, fd)
        return result
    finally:
        os.close(fd)
