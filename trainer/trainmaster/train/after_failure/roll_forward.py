"""How ranks that lost a peer inside of a step's last all-reduce complete the step: with the sums of other ranks.

A rank that got past this all-reduce needs no other rank to complete the step. A rank that did not has its own gradients
and lacks only the sums. So when the world breaks, ranks put the sums of their last step into the round's store, which
outlives ranks, and the ranks behind complete the step with them. Nothing is done as long as nothing fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainmaster.host import own_pod

STORE_LIMIT_S = 2.0
"""Seconds that the store has to answer at all: it may be lost with its machine."""
OTHERS_LIMIT_S = 8.0
"""Seconds that the other ranks have to notice that the world is broken: some are still computing."""
HURRY_S = 1.0
"""The same, in seconds, if the agent waits: then the agents of other ranks have asked them, too, and a thread of each
answers."""
POD_HURRY_S = 0.1
"""The same, in seconds, if no more ranks are silent than a pod has, because these may all be dead."""
_POLL_S = 0.002


class LastSums:
    """The sums of the last step. `store` is the round's store.

    `asked_s()` returns the seconds since the agent asked for a rescue of this rank, or None if it did not.
    """

    def __init__(self, store: Any, world_size: int, asked_s: Callable[[], float | None]) -> None:
        self._store, self._world_size, self._asked_s = store, world_size, asked_s
        self._pod_size = own_pod.size()
        self._known: tuple[int, Tensor] | None = None
        self._counted = False

    def passed(self, step: int, sums: Tensor) -> None:
        """Note that `sums` (float64) complete `step`, on this rank and on every other one."""
        self._known = (step, sums)

    def tell(self, *, last_word: bool) -> None:
        """Publish what this rank knows, after the world broke. With `last_word`, it will not know more."""
        if not self._counted:
            self._counted = last_word
            _in_time(lambda: self._tell(last_word), STORE_LIMIT_S)

    def ask(self, step: int) -> Tensor | None:
        """Return the sums of `step` if any rank has them, or None once all ranks have answered or a limit is over."""
        found = _in_time(lambda: self._ask(step), OTHERS_LIMIT_S + STORE_LIMIT_S)
        return found if isinstance(found, Tensor) else None

    def _tell(self, last_word: bool) -> None:
        if self._known is not None:
            step, sums = self._known
            self._store.set(_key(step), sums.cpu().numpy().tobytes())
        if last_word:
            self._store.add("sums/told", 1)

    def _ask(self, step: int) -> Tensor | None:
        deadline = time.monotonic() + OTHERS_LIMIT_S
        while True:
            # In this order: a rank that is counted has already published what it knows.
            silent = self._world_size - self._store.add("sums/told", 0)
            if self._known is not None and self._known[0] == step:  # this rank was asked while it was being told them
                self._tell(False)
                return self._known[1]
            if self._store.check([_key(step)]):
                return torch.frombuffer(bytearray(self._store.get(_key(step))), dtype=torch.float64)
            if time.monotonic() > deadline or self._gives_up(silent):
                return None
            time.sleep(_POLL_S)

    def _gives_up(self, silent: int) -> bool:
        """Return True if no further answer is to be expected: at least one rank is dead and does not answer."""
        if silent <= 1:
            return True
        asked_s = self._asked_s()
        return asked_s is not None and asked_s > (POD_HURRY_S if silent <= self._pod_size else HURRY_S)


def _key(step: int) -> str:
    return f"sums/{step}"


def _in_time(act: Callable[[], Any], limit_s: float) -> Any:
    """Return what `act` returns, or None if it fails or takes too long: a call to a lost store can hang."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(act())
        except (RuntimeError, OSError) as error:  # torch's errors of a store are RuntimeErrors
            print(f"trainmaster: the round's store doesn't answer: {error}", flush=True)

    thread = threading.Thread(target=run, name="last sums", daemon=True)
    thread.start()
    thread.join(limit_s)
    return results[0] if results else None
