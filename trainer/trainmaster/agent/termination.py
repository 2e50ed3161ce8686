"""The termination message: what `kubectl describe pod` shows of a pod's end."""

from __future__ import annotations

import contextlib

from trainmaster.contract.wire import Verdict

_LIMIT = 4096  # bytes that the kubelet keeps


def write_termination(path: str, verdict: Verdict | None) -> None:
    """Write the verdict, in words, if there is one and a place for it."""
    if not path or verdict is None:
        return
    head = (
        f"rank {verdict.rank}: {verdict.cause.value}: {verdict.message} (round {verdict.round}, step {verdict.step})\n"
    )
    rest = verdict.traceback or "\n".join(verdict.last_lines)
    room = _LIMIT - len(head.encode())
    text = head.encode() + rest.encode()[-room:] if room > 0 else head.encode()[:_LIMIT]
    with contextlib.suppress(OSError), open(path, "wb") as file:
        file.write(text)
