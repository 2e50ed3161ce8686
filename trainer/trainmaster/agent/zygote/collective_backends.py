"""Registers torch's own collective backends in the zygote.

Since 2.15, torch finds them by asking every installed distribution for entry points at the first process group, which
takes 10 ms of each rank's start. The registration only stores a constructor, which forks inherit.
"""

from __future__ import annotations

import sys
from typing import Any


def register() -> None:
    """Register torch's backends. Do nothing with a torch that registers them when it is imported."""
    backend: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "Backend", None)
    ensure = getattr(backend, "_ensure_backend_registered", None)
    if ensure is None:
        return
    for name in ("gloo", "nccl"):
        try:
            ensure(name)
        except Exception as error:  # noqa: BLE001  it will be told again to the rank that asks for this backend
            print(f"[zygote] the backend {name} is not registered in advance: {error}", file=sys.stderr)
