"""Why a rank ended, from its exit status, last words and last lines. The module is pure.

The first cause counts. A rank that ended because a peer ended is marked as a cascade, so that it is not taken for the
cause.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from trainmaster.agent.shell.ranks.last_output import (
    LAST_LINES,
    USAGE_ERROR,
    exception_in,
    exceptions_in,
    last_said,
    traceback_in,
)
from trainmaster.agent.shell.ranks.recurrence import recurrence
from trainmaster.contract.wire import EXIT_CODES, Cause, ExitCode, Recurrence, Verdict
from trainmaster.host.failure_signatures import cause_of, hardware_line, is_abort_for_a_peer, is_cascade, is_on_device
from trainmaster.rank.failure_message import OWN_LOOP_TRACEBACK_LIMIT

_LINE_CHARACTERS = 2_000
"""Characters of a printed line that are kept with a verdict. An operator refuses reports of more than 1 MiB, and a
character may take twelve bytes there."""


@dataclass
class End:
    """Everything that is known about the end of a rank."""

    rank: int
    round: int
    step: int = 0
    status: int | None = None  # wait status; None: it spoke its last words but still runs
    words: dict[str, Any] | None = None  # FAILED message of the channel
    lines: list[str] = field(default_factory=list)  # its last output
    exits: bool = False  # it ended itself, by SystemExit
    forked_warm: bool = False  # from a process that had imported what ranks of earlier rounds did
    own_loop: bool = False  # our loop's exit codes can be trusted
    oom_killed: bool = False  # the kernel's out-of-memory killer was at work in this container
    note: str = ""  # what the agent itself knows, for instance that its zygote ended
    peer_failed: bool = False  # another rank of its round failed shortly before


def exit_code_of(status: int) -> int:
    """Return the exit code of a wait status; negative: the signal."""
    if status & 0x7F:
        return -(status & 0x7F)
    return (status >> 8) & 0xFF


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def judge(end: End) -> Verdict:
    """Return the verdict on a rank that failed. A status of 0 or SAVED is no failure."""
    words = end.words or {}
    code = exit_code_of(end.status) if end.status is not None else _code_to_come(words)
    if not (words or end.exits or end.own_loop):
        code = _without_shell(code)
    text = str(words.get("traceback") or "") or traceback_in(end.lines)
    cause, message = _cause(end, code, words, text)
    broken = hardware_line(end.lines, text) if cause is Cause.CRASH and not end.note else ""
    if broken:  # what the driver or a library has printed says more than the exception
        cause, message = Cause.HARDWARE_FAULT, broken
    cascade = _is_cascade(end, code, words, text)
    recurs = Recurrence.UNKNOWN
    if cause is Cause.CRASH and not (cascade or end.note):
        recurs = recurrence(code, exceptions_in(text), end.lines[-LAST_LINES:], exits=end.exits)
    if recurs is Recurrence.CERTAIN and end.forked_warm:
        recurs = Recurrence.LIKELY  # what it was forked from may be to blame, and the next try is another way
    return Verdict(
        rank=end.rank,
        cause=cause,
        round=end.round,
        message=message,
        exit_code=code,
        signal=signal_name(-code) if code < 0 else "",
        traceback=text[-OWN_LOOP_TRACEBACK_LIMIT:],
        last_lines=[line[:_LINE_CHARACTERS] for line in end.lines[-LAST_LINES:]],
        step=int(words.get("step") or end.step),
        cascade=cascade and not broken,
        on_device=cause is Cause.OUT_OF_MEMORY and code >= 0 and is_on_device(text),
        samples=[int(n) for n in words.get("samples") or []],
        recurs=recurs,
    )


def _without_shell(code: int) -> int:
    """Return the exit code, negative for a signal, of a program from that of the shell that ran it.

    Most shells end with 128 and the number of the signal that has killed their last program.
    """
    return 128 - code if code - 128 in signal.valid_signals() else code


def _code_to_come(words: dict[str, Any]) -> int:
    """Return the exit code of a rank that has sent its last words and is about to end."""
    if words.get("cascade"):
        return int(ExitCode.PEER_LOST)
    codes = {cause.value: code for code, cause in EXIT_CODES.items() if code != ExitCode.DO_NOT_RESTART}
    return int(codes.get(str(words.get("cause")), ExitCode.CRASH))


def _is_cascade(end: End, code: int, words: dict[str, Any], text: str) -> bool:
    """Return True if the rank ended because another one did. `text` is its traceback."""
    if words or code == ExitCode.PEER_LOST:
        return bool(words.get("cascade")) or code == ExitCode.PEER_LOST
    if code == -signal.SIGABRT:
        return is_abort_for_a_peer(end.lines, peer_failed=end.peer_failed)
    return code > 0 and is_cascade(text)


def _cause(end: End, code: int, words: dict[str, Any], text: str) -> tuple[Cause, str]:
    if end.note:
        return Cause.CRASH, end.note
    if words:
        try:
            cause = Cause(words.get("cause"))
        except ValueError:
            cause = cause_of(text)
        return cause, str(words.get("message") or cause.value)
    if code < 0:
        name = signal_name(-code)
        if end.oom_killed and -code == signal.SIGKILL:
            return Cause.OUT_OF_MEMORY, "killed by the kernel: out of memory"
        return Cause.CRASH, f"killed by {name}"
    if code in EXIT_CODES and (code != ExitCode.CONFIG_ERROR or end.own_loop):
        return EXIT_CODES[code], f"ended with exit code {code}"
    if text:
        return cause_of(text), exception_in(text)
    said = last_said(end.lines, code)
    if not said:
        return Cause.CRASH, f"ended with exit code {code}"
    return Cause.CRASH, f"ended with exit code {code}{':' if code == USAGE_ERROR else '; its last output:'} {said}"
