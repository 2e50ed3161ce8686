"""What a user sees while a job runs and the output is no terminal: one line for each change, and now and then one for
the progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from trainmaster_operator.cli.display import rank_rows
from trainmaster_operator.cli.display.number_words import clock, loss, rate, remaining, seconds
from trainmaster_operator.cli.display.piece_of_news import News
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobPhase

PLAIN_EVERY_S = 5.0
PLAIN_SHARE = 0.05
FIRST_STEP_EVERY_S = 10.0
"""Seconds between two lines about a first step that lasts."""


class PlainDisplay:
    """Writes one line for each change, and one for each 5 % of the steps or each few seconds, whichever is rarer,
    but at most one a second."""

    def __init__(self, scene: Scene, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._scene = scene
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._told_at = self._began
        self._told_step = 0
        self._still_told_s = 0.0  # For how long no step had been made when the last line said so.
        # The time of the last line about the first step that is under way.
        self._first_step_told_at: float | None = None
        self._first_step_began = 0.0

    def start(self) -> None:
        self._write("job", f"{self._scene.name}: {counted(self._scene.world_size, 'rank')}, {self._scene.place}")

    def tell(self, news: News) -> None:
        self._write(news.word, news.text)

    def draw(self) -> None:
        progress = self._scene.status.progress
        now = self._clock()
        self._tell_first_step(now)
        self._tell_standstill()
        if self._scene.status.phase is not JobPhase.RUNNING or progress.step == self._told_step:
            return
        total = self._scene.total
        leap = abs(progress.step - self._told_step) >= max(1, PLAIN_SHARE * total) if total else False
        if now - self._told_at >= PLAIN_EVERY_S or (leap and now - self._told_at >= 1.0):
            self._told_at, self._told_step = now, progress.step
            self._write("step", describe(self._scene))

    def stop(self) -> None:
        """Do nothing, because every line is flushed already."""

    def _tell_first_step(self, now: float) -> None:
        """Write how long the first step takes. There is no other news during it, and with torch.compile it may take
        minutes."""
        lasts = rank_rows.first_step_s(self._scene.status, self._scene.ranks)
        told_at, word = self._first_step_told_at, "compiling" if self._scene.compiles else "first step"
        if lasts is None:
            self._first_step_told_at = None
            if told_at is not None and self._scene.status.phase is JobPhase.RUNNING:
                self._write(word, f"done after {seconds(now - self._first_step_began)}")
            return
        if told_at is None:
            self._first_step_began = now - lasts
        elif now - told_at < FIRST_STEP_EVERY_S:
            return
        self._first_step_told_at = now
        self._write(word, f"{seconds(now - self._first_step_began)} so far")

    def _tell_standstill(self) -> None:
        """Write that no step is made, again each time when that has lasted twice as long."""
        still = self._scene.standstill
        if still is None:
            self._still_told_s = 0.0
        elif still.lasts_s >= 2 * self._still_told_s:
            self._still_told_s = still.lasts_s
            self._write("waiting", still.words)

    def _write(self, word: str, text: str) -> None:
        self._stream.write(f"{clock(self._clock() - self._began)}  {word:<10}  {text}\n")
        self._stream.flush()


def describe(scene: Scene) -> str:
    """Return the progress on one line."""
    progress = scene.status.progress
    parts = [f"{progress.step}/{scene.total}" if scene.total else str(progress.step)]
    if progress.loss:
        parts.append(f"loss {loss(progress.loss)}")
    if (still := scene.standstill) is not None:
        return "  ".join([*parts, still.words])
    if progress.tokensPerSecond:
        parts.append(f"{rate(progress.tokensPerSecond)} {scene.unit}/s")
    elif progress.stepsPerSecond:
        parts.append(f"{rate(progress.stepsPerSecond)} steps/s")
    if scene.eta_s is not None:
        parts.append(f"ETA {remaining(scene.eta_s)}")
    return "  ".join(parts)
