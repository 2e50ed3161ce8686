"""The end of a round waits until storage has the last saves of its ranks. This module decides when to give up."""

from __future__ import annotations

import asyncio
import time

from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.saves.upload_queue import Uploads

STOP_LIMIT_S = 60.0
"""Seconds that ranks wait at most if the job is to stop: it can be resumed from an earlier checkpoint."""

AFTER_END_S = 20.0
"""Seconds that an agent waits at most, when all is over, for uploads that are still under way."""


class LastSaves:
    """`limit_s` is how long ranks that have ended wait for a storage that is full or does not answer."""

    def __init__(self, uploads: Uploads, limit_s: float) -> None:
        self._uploads = uploads
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None

    def look(self, round: Round | None, *, stops: bool) -> None:
        """Call this when a rank or an upload has ended, and when a stop is asked for (`stops`). Once all ranks have
        ended, a save that did not reach storage becomes the failure of the round."""
        self.close()
        if round is None or round.alive or round.ending or round.verdict is not None or round.exit_codes() is None:
            return
        limit_s = min(self._limit_s, STOP_LIMIT_S) if stops else self._limit_s
        left_s = self._uploads.left_s(limit_s, (time.monotonic_ns() - round.ended_ns) / 1e9)
        if left_s is not None and left_s <= 0:
            self._uploads.give_up()
        lost = self._uploads.lost(round.number)
        if lost is not None:
            round.unsaved(lost.rank, lost.step, lost.error, fenced=lost.fenced)
        elif left_s is not None and left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, lambda: self.look(round, stops=stops))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
