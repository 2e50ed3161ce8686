"""The termination message: the text of a verdict that a pod leaves behind.

People read it in `kubectl describe pod`, and so does an operator that was not running when the rank failed.
"""

from __future__ import annotations

import contextlib
import re

from trainmaster.contract.wire.causes_and_exit_codes import Cause
from trainmaster.contract.wire.messages import Verdict

LIMIT = 4096
"""Number of bytes of a termination message that a kubelet keeps."""

_CASCADE = ", after a peer's end"
_HEAD = re.compile(
    rf"rank (\d{{1,9}}): (\w+): (.*?) \(round (\d{{1,9}}), step (\d{{1,18}})(, SIG\w+)?({_CASCADE})?\)\n(.*)", re.DOTALL
)


def write(path: str, verdict: Verdict | None) -> None:
    """Write the verdict as text, if there is a verdict and a file for it."""
    if not path or verdict is None:
        return
    with contextlib.suppress(OSError), open(path, "wb") as file:
        file.write(render(verdict))


def render(verdict: Verdict) -> bytes:
    """Return the verdict as at most LIMIT bytes: what happened in the first line, then the end of the traceback or
    output.

    A file name that is not UTF-8 puts half a surrogate pair into a message, which becomes a question mark here.
    """
    signal = f", {verdict.signal}" if verdict.signal.startswith("SIG") else ""
    tail = f" (round {verdict.round}, step {verdict.step}{signal}{_CASCADE if verdict.cascade else ''})\n"
    head = f"rank {verdict.rank}: {verdict.cause.value}: {verdict.message}".encode(errors="replace")
    head = head[: LIMIT - len(tail.encode())]
    text = head + tail.encode()
    rest = (verdict.traceback or "\n".join(verdict.last_lines)).encode(errors="replace")
    room = LIMIT - len(text)
    return text + (rest[-room:] if room > 0 else b"")


def parse(text: str) -> Verdict | None:
    """Return the verdict of a text that `render` wrote, or None for any other text."""
    found = _HEAD.match(text if "\n" in text else f"{text}\n")
    if found is None:
        return None
    rank, cause, message, round, step, signal, cascade, rest = found.groups()
    if cause not in {known.value for known in Cause}:
        return None
    return Verdict(
        rank=int(rank),
        cause=Cause(cause),
        round=int(round),
        message=message,
        signal=(signal or "").removeprefix(", "),
        traceback=rest,
        step=int(step),
        cascade=bool(cascade),
    )
