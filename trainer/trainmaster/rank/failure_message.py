"""Why a rank failed, told to its agent over the channel before the process ends."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

from trainmaster.contract.wire import channel, environment
from trainmaster.contract.wire.causes_and_exit_codes import Cause, ExitCode

MESSAGE_LIMIT, TRACEBACK_LIMIT = 2_000, 20_000
"""Characters of a script's failure that are told: the beginning of its message, and the end of its traceback."""
OWN_LOOP_MESSAGE_LIMIT, OWN_LOOP_TRACEBACK_LIMIT = 4_000, 32_000
"""The same for a failure in the built-in trainer."""


def tell(
    cause: Cause, message: str, traceback: str, *, cascade: bool = False, step: int = 0, may_go_on: bool = False
) -> None:
    """Send the last words to the agent, if there is one. It never raises, because the process is ending anyway."""
    words = {"cause": cause.value, "message": message[:MESSAGE_LIMIT], "traceback": traceback[-TRACEBACK_LIMIT:]}
    _send(channel.FAILED, {**words, "cascade": cascade, "step": step, "may_go_on": may_go_on})


def refuse(words: str) -> int:
    """Report in a sentence why this rank cannot run, to the agent and on standard error.

    Return the exit code, after which no restart is tried. It never raises.
    """
    tell(Cause.CONFIG_ERROR, words, "")
    with contextlib.suppress(OSError, ValueError):
        print(f"trainmaster: {words}", file=sys.stderr, flush=True)
    return int(ExitCode.CONFIG_ERROR)


def tell_exit(code: int) -> None:
    """Report that the program ends itself by SystemExit. Its last output are its last words. It never raises."""
    _send(channel.EXITS, {"code": code})


def _send(kind: str, fields: dict[str, Any]) -> None:
    fd = os.environ.get(environment.CHANNEL_FD)
    if not fd:
        return
    with contextlib.suppress(OSError, ValueError):
        link = channel.Channel.open(os.dup(int(fd)))
        link.send(kind, {**fields, "at_ns": time.monotonic_ns(), "piped": _is_in_pipeline()})
        link.close()


def _is_in_pipeline() -> bool:
    """Return True if another program below this rank reads what this process prints: in `python train.py | tee log`."""
    try:
        own, ranks = (os.readlink(f"/proc/{process}/fd/1") for process in ("self", os.getsid(0)))
    except OSError:
        return False
    return own.startswith("pipe:") and own != ranks
