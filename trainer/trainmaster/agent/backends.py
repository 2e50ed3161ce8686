"""Spares forks a search: torch asks every installed distribution, twice, whether it brings a backend called "gloo".

That costs 10 ms of each process group. The zygote asks once; its forks believe it for torch's own backends.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

_GROUP = "torch.distributed.backends"
_BUILT_IN = {"gloo", "nccl", "mpi", "ucc", "fake"}


def remember() -> None:
    """Look for plugins now. Does nothing with a torch that does not look for them."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    search: Any = getattr(getattr(c10d, "Backend", None), "_ensure_backend_registered", None)
    if search is None:
        return
    plugins = {point.name.lower() for point in importlib.metadata.entry_points(group=_GROUP)}
    needless = _BUILT_IN - plugins

    def ensure_backend_registered(name: str) -> None:
        if name.lower() not in needless:
            search(name)

    c10d.Backend._ensure_backend_registered = staticmethod(ensure_backend_registered)  # type: ignore[union-attr]
