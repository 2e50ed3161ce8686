"""Stopping on request: every rank saves the same step, then leaves. Ranks only read their memory for it."""

from __future__ import annotations

import time

from trainmaster.rank.reporter import Reporter

_POLL_S = 0.0003


def stop_binds(reporter: Reporter, step: int) -> bool:
    """Whether to save and leave after `step`, the last completed one.

    A rank that has reached `stop_at` waits until all others have seen it too (then it binds), or until it moves up
    because one of them had passed it already.
    """
    while True:
        control = reporter.control()
        if control.stop_at < 0 or step < control.stop_at:
            return False
        if control.stop_bound:
            return True
        reporter.beat()
        time.sleep(_POLL_S)
