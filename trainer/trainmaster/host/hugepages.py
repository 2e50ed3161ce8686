"""Huge pages for a zygote's memory: a fork copies, and an exit frees, hundreds of entries instead of 100,000.

Measured with torch imported (400 MB of anonymous memory): fork 5.5 -> 1.4 ms, exit 7 -> 3 ms.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_HUGE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # Linux 6.1; older kernels say EINVAL, and nothing is lost

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def collapse(stop: Callable[[], bool] = lambda: False) -> int:
    """Collapse all writable private memory into huge pages where the kernel can, until `stop()` is true. Return the
    number of huge pages."""
    collapsed = 0
    for start, end in _regions():
        for address in range((start + _HUGE - 1) // _HUGE * _HUGE, end // _HUGE * _HUGE, _HUGE):
            if stop():
                return collapsed
            _libc.madvise(address, _HUGE, _MADV_HUGEPAGE)
            collapsed += _libc.madvise(address, _HUGE, _MADV_COLLAPSE) == 0
    return collapsed


def _regions() -> list[tuple[int, int]]:
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            if "w" in fields[1] and "p" in fields[1] and (len(fields) == 5 or fields[5] == "[heap]"):
                low, _, high = fields[0].partition("-")
                found.append((int(low, 16), int(high, 16)))
    return found
