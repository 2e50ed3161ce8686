"""The termination message: what `kubectl describe pod` shows of a pod's end."""

from __future__ import annotations

import contextlib

from trainmaster.contract.wire import Verdict, verdict_text


def write_termination(path: str, verdict: Verdict | None) -> None:
    """Write the verdict as text, if there is a verdict and a file for it."""
    if not path or verdict is None:
        return
    with contextlib.suppress(OSError), open(path, "wb") as file:
        file.write(verdict_text.render(verdict))
