"""From an exception to a verdict: the cause, the exit code, and whether this rank failed only because a peer did."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from trainmaster.agent.symptoms import cause_of, code_of, is_cascade
from trainmaster.contract.wire import channel as wire
from trainmaster.errors import Diverged, TrainmasterError
from trainmaster.report import Reporter

_MESSAGE_LIMIT = 4_000  # characters
_TRACEBACK_LIMIT = 32_000


def verdict(error: BaseException, step: int) -> tuple[dict[str, Any], int]:
    """(fields of a FAILED message, exit code)."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, TrainmasterError):
        cause, code, cascade, message = error.cause, error.exit_code, False, str(error)
    else:
        cause, cascade = cause_of(text), is_cascade(text)
        code = code_of(cause, cascade)
        message = f"{type(error).__name__}: {error}"
    words: dict[str, Any] = {
        "cause": cause.value,
        "message": message[:_MESSAGE_LIMIT],
        "traceback": text[-_TRACEBACK_LIMIT:],
        "step": step,
        "cascade": cascade,
    }
    if isinstance(error, Diverged) and error.samples is not None:
        words["samples"] = list(error.samples)
    return words, int(code)


def say(reporter: Reporter, error: BaseException, step: int) -> int:
    """Send the verdict, print the traceback (or, for what a person did, the sentence). Returns the exit code."""
    words, code = verdict(error, step)
    if isinstance(error, TrainmasterError):
        print(f"trainmaster: {words['message']}", file=sys.stderr)
    else:
        print(words["traceback"], file=sys.stderr, end="")
    reporter.send(wire.FAILED, words)
    sys.stdout.flush()
    sys.stderr.flush()
    return code
