"""How many files and connections a process may have open. Many systems start processes with a limit of 1,024."""

from __future__ import annotations

import resource


def allow_files(count: int) -> int:
    """Raise this process's limit of open files to `count` if it is lower, as far as the system lets it. Return how
    many of them it may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
