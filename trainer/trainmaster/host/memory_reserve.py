"""The part of a rank's memory that an estimate may use. `batch.autoMicro` and `trainmaster plan` share it."""

from __future__ import annotations

PROCESS = 512 << 20
"""Bytes of a process on CPU that no tensor uses: Python, torch, its threads and buffers of collectives."""
CONTEXT = 1 << 30
"""Bytes of a device that no tensor uses: its context, work space of libraries, buffers of collectives."""
USABLE = 0.9
"""The share of the remaining memory that an estimate may use: it is a few percent off, and allocators leave gaps."""


def usable(memory: float, *, on_device: bool) -> int:
    """Return the bytes that the tensors of a rank may take, of the bytes that its device or its process has."""
    return max(0, int((memory - (CONTEXT if on_device else PROCESS)) * USABLE))
