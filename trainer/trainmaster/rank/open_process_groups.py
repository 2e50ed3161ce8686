"""Closes torch's process groups over gloo that a script has left open when it ends.

Such a process may abort while it exits ("terminate called without an active exception"), as its peers end at the same
time. Then a rank that has done all its work would count as failed.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from typing import Any

_script_has_ended = False


def install() -> None:
    """Close them when this process exits, after what the script itself does at its exit. Call it before the script
    begins."""
    atexit.register(_close)


def note_end() -> None:
    """Note that the script has ended well. A rank that fails may have work under way, which closing would wait for."""
    global _script_has_ended
    _script_has_ended = True


def _close() -> None:
    distributed = sys.modules.get("torch.distributed")
    if not _script_has_ended or distributed is None:
        return
    with contextlib.suppress(Exception):  # the script has done its work
        # NCCL's have an end of their own.
        if distributed.is_available() and distributed.is_initialized() and _are_over_gloo(distributed):
            distributed.destroy_process_group()


def _are_over_gloo(distributed: Any) -> bool:
    """Return True if gloo serves all devices. A group that was opened without a backend has one for each device, as in
    "cpu:gloo,cuda:nccl", and `get_backend` does not know it."""
    return all(part.rpartition(":")[2] == "gloo" for part in str(distributed.get_backend_config()).split(","))
