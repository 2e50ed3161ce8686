"""Keeps the machine's cores busy, so that a test that needs a quiet machine shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests import tied

_LOOP = "while True: pass"


@contextmanager
def busy(loops: int) -> Iterator[list[int]]:
    """Run `loops` busy loops while the context lasts, one for each core in turn; yield their process ids.

    They are ended however the context is left, and by the kernel if this process is killed.
    """
    cores = sorted(os.sched_getaffinity(0))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(loops):
            # A session of its own: Ctrl-C in a terminal reaches this process alone.
            running.append(tied.popen([sys.executable, "-S", "-c", _LOOP], start_new_session=True))
            os.sched_setaffinity(running[-1].pid, {cores[number % len(cores)]})
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
