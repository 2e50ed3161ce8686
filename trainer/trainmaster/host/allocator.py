"""How the C library's allocator treats this process's memory, on CPU. Standard library only."""

from __future__ import annotations

import ctypes
import os

# Parameters of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST = 2**31 - 1  # bytes: mallopt takes a C int
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Keep freed memory for the next step instead of returning it to the kernel. Return True if that was possible.

    Each step of a training allocates what the step before it has freed: activations and gradients of megabytes each. By
    default glibc returns such blocks to the kernel, which then has to find and clear pages again: thousands of page
    faults per step, 5 % of the time of a small model. The peak memory of the process does not change. Nothing is done
    if a person has set one of these parameters, or with another C library.
    """
    if any(name in os.environ for name in _OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _MOST) and mallopt(_M_MMAP_THRESHOLD, _MOST))
