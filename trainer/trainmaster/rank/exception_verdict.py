"""From an exception to a verdict: the cause, the exit code, and whether this rank failed only because of a peer."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from trainmaster.contract.wire import channel as wire
from trainmaster.contract.wire.causes_and_exit_codes import Cause
from trainmaster.errors import ConfigError, DataError, Diverged, TrainmasterError
from trainmaster.host.failure_signatures import cause_of, code_of, is_cascade
from trainmaster.rank.failure_message import OWN_LOOP_MESSAGE_LIMIT, OWN_LOOP_TRACEBACK_LIMIT
from trainmaster.rank.reporter import Reporter


def verdict(error: BaseException, step: int, of_memory: Callable[[], str] = lambda: "") -> tuple[dict[str, Any], int]:
    """Return (fields of a FAILED message, exit code). `of_memory` returns what to add if memory is exhausted."""
    text = "".join(traceback.format_exception(error))
    # Of a mistake of a person the sentence says it all, unless the person's own code has raised it.
    told_whole = isinstance(error, (ConfigError, DataError)) and error.__cause__ is None
    if isinstance(error, TrainmasterError):
        cause, code, cascade, message = error.cause, error.exit_code, False, str(error)
    else:
        cause, cascade = cause_of(text), is_cascade(text)
        code = code_of(cause, cascade)
        message = f"{type(error).__name__}: {error}"
        if cause is Cause.OUT_OF_MEMORY and not cascade and (owners := _safely(of_memory)):
            message = f"{message[: OWN_LOOP_MESSAGE_LIMIT // 2].rstrip('. ')}. {owners}"
    words: dict[str, Any] = {
        "cause": cause.value,
        "message": message[:OWN_LOOP_MESSAGE_LIMIT],
        "traceback": "" if told_whole else text[-OWN_LOOP_TRACEBACK_LIMIT:],
        "step": step,
        "cascade": cascade,
    }
    if isinstance(error, Diverged) and error.samples is not None:
        words["samples"] = list(error.samples)
    return words, int(code)


def say(reporter: Reporter, error: BaseException, step: int, of_memory: Callable[[], str] = lambda: "") -> int:
    """Send the verdict, and print the traceback, or only the sentence if a person made a mistake. Return the exit
    code."""
    words, code = verdict(error, step, of_memory)
    if isinstance(error, TrainmasterError):
        print(f"trainmaster: {words['message']}", file=sys.stderr)
    else:
        print(words["traceback"], file=sys.stderr, end="")
        if words["cause"] == Cause.OUT_OF_MEMORY.value:
            print(f"trainmaster: {words['message']}", file=sys.stderr)
    reporter.send(wire.FAILED, words)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _safely(tell: Callable[[], str]) -> str:
    """Return what `tell` returns, or why it failed, so that the first failure is reported in any case."""
    try:
        return tell()
    except Exception as error:  # noqa: BLE001
        return f"(who has the memory isn't known: {type(error).__name__}: {error})"
