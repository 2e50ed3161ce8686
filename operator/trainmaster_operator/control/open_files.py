"""How many files and connections a process may have open. Many systems start processes with a limit of 1,024."""

from __future__ import annotations

import os
import resource


def allow_more_files(count: int) -> int:
    """Raise this process's limit, as far as the system lets it, so that it can open `count` files beside those that are
    open now. Return how many of them it may open."""
    open_now = len(os.listdir("/dev/fd")) - 1  # The listing itself has one open.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= open_now + count:
        return count
    limit = open_now + count if hard == resource.RLIM_INFINITY else min(open_now + count, hard)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(limit - open_now, 0)
