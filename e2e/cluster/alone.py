"""One command at a time: two that both start a node would leave one of them without an owner."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.places import CACHE


@contextmanager
def alone(cluster: str = "") -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"lock{cluster and '-'}{cluster}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
