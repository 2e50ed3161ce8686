"""Stopping on request: all ranks save the same step and then leave. Ranks only read their progress record for it."""

from __future__ import annotations

import time

from trainmaster.rank.reporter import Reporter

_POLL_S = 0.0003


def stop_binds(reporter: Reporter, step: int) -> bool:
    """Return True if this rank is to save and leave after `step`, the last completed one.

    A rank that has reached `stop_at` waits until all others have seen it, too, so that it binds, or until it is raised
    because one of them had already passed it.
    """
    while True:
        control = reporter.control()
        if control.stop_at < 0 or step < control.stop_at:
            return False
        if control.stop_bound:
            return True
        reporter.beat()
        time.sleep(_POLL_S)
