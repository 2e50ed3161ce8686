"""Reads the samples of the next step while a step computes, if reading takes long enough to matter."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from trainmaster.data.source import Batch, Source

WORTH_S = 1e-3
"""Seconds of reading in a step from which on samples are read ahead: for less, passing them on would take as long."""


class Prefetch:
    """The batches of one rank, for one step after another.

    The samples of a step follow from `consumed` alone, so batches that were read ahead are dropped if the next step is
    another one. An error while reading is raised in the step that needs the samples.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: dict[tuple[int, range], Future[Batch]] = {}

    def batches(self, consumed: int, slots: Sequence[range], next_consumed: int) -> Iterator[Batch]:
        """Yield a batch for each of these ranges of slots, of a step that starts after `consumed` samples.

        The next step is expected to start after `next_consumed` samples.
        """
        ahead, self._ahead = self._ahead, {}
        took = 0.0
        for left, each in zip(range(len(slots))[::-1], slots, strict=True):
            found = ahead.pop((consumed, each), None)
            began = time.perf_counter()
            batch = self._source.batch(consumed, each) if found is None else found.result()
            took += time.perf_counter() - began
            if not left:  # before the last one is computed with
                self._read_ahead(next_consumed, slots, took)
            yield batch
        for future in ahead.values():
            future.cancel()

    def _read_ahead(self, consumed: int, slots: Sequence[range], took: float) -> None:
        if self._thread is None and took >= WORTH_S:
            self._thread = ThreadPoolExecutor(1, "prefetch")
        if self._thread is not None:
            self._ahead = {(consumed, each): self._thread.submit(self._source.batch, consumed, each) for each in slots}
