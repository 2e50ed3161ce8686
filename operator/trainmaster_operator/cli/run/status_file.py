"""Keeps status.yaml up to date while a run is on. A disk that cannot be written does not stop training; it is
reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.cli.refusal import why
from trainmaster_operator.cluster.port import Object

SAVE_AFTER_S = 0.3  # Seconds after a change of the job, so that many changes need one write.


class Folder(Protocol):
    """The part of the output folder that is used here."""

    def write_status(self, resource: Object) -> None: ...


class StatusFile:
    """Writes status.yaml. `place`: the file's name for people. `tell`: called with news for them."""

    def __init__(self, folder: Folder, place: str, tell: Callable[[News], None]) -> None:
        self._folder, self._place, self._tell = folder, place, tell
        # One thread, because a slow disk must not stop the store and the later of two writes must win.
        self._thread = ThreadPoolExecutor(1)
        self.stale = ""
        """Why the file tells of an earlier state; "" when it doesn't."""

    async def write(self, resource: Object) -> None:
        """Replace the file. A failure is reported once, and the next change is tried again."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._folder.write_status, resource)
        except OSError as error:
            stale = f"{self._place} can't be written: {why(error)}"
            if stale != self.stale:
                self._tell(News("not saved", stale, Tone.BAD))
            self.stale = stale
        else:
            self.stale = ""

    def close(self) -> None:
        """Wait until writes under way have ended."""
        self._thread.shutdown()
