"""Whether a program that ended would fail in the same way again, from its exit code, exceptions and last lines.

Only the program's own words count. If memory, a device, a network or a file may be the reason, a restart may succeed,
so the answer is that it is not known. The module is pure.
"""

from __future__ import annotations

import re

from trainmaster.agent.shell.ranks.last_output import USAGE_ERROR, last_said
from trainmaster.contract.wire.causes_and_exit_codes import Recurrence
from trainmaster.host.failure_signatures import speaks_of_device_or_collective

_LAST_CODE = 127  # higher ones are a shell's for signals

_OUTSIDE = re.compile(
    r"\b(?:OS|IO|File\w*|Directory|NotADirectory|IsADirectory|Permission|BlockingIO|ChildProcess|ProcessLookup|Interrupted"
    r"|Broken\w*|Connect\w*|Timeout|URL|HTTP\w*|SSL\w*|Proxy|Network\w*|\w*Timeout|RemoteDisconnected|gaierror|herror)"
    r"(?:Error|Exception|Refused\w*|Reset\w*|Aborted\w*)?:"
    r"|No such file or directory|Permission denied|Read-only file system|Input/output error|Stale (?:NFS )?file handle"
    r"|Transport endpoint|temporarily unavailable|Device or resource busy|No space left|Disk quota|Too many open files"
    r"|[Tt]imed out|[Uu]nreachable|[Rr]efused|reset by peer|Name or service not known|name resolution|in use\b"
    r"|cannot open shared object file|[Tt]oo [Mm]any [Rr]equests|\b50[0234] [A-Z]|[Oo]ut of memory|MemoryError|memory\b"
)
"""Exceptions and words that concern something outside of the program."""

_BROKEN_PROGRAM = ("ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError")
_USAGE = re.compile(r"\s*usage:", re.IGNORECASE)


def recurrence(code: int, exceptions: list[str], lines: list[str], *, exits: bool) -> Recurrence:
    """Return whether the program would fail in the same way again.

    `code` is the exit code, negative for a signal. `exceptions` are the lines that name the exceptions, the last one at
    the end; there are none without a traceback. `lines` are the last output. `exits` is true if it ended by SystemExit.
    """
    if not 0 < code <= _LAST_CODE:
        return Recurrence.UNKNOWN
    if exceptions:
        if exceptions[-1].partition(":")[0] in _BROKEN_PROGRAM:
            return Recurrence.UNKNOWN if _speak_of_outside(exceptions[:-1]) else Recurrence.CERTAIN
        return Recurrence.UNKNOWN if _speak_of_outside(exceptions) else Recurrence.LIKELY
    said = [line for line in lines if line.strip()]
    if code == USAGE_ERROR and (exits or any(_USAGE.match(line) for line in said)):
        said = [last_said(lines, code)]  # what libraries print at their own end says nothing of a usage error
        if exits:
            return Recurrence.UNKNOWN if _OUTSIDE.search(said[0]) else Recurrence.CERTAIN
    return Recurrence.LIKELY if said and not _speak_of_outside(said) else Recurrence.UNKNOWN


def _speak_of_outside(lines: list[str]) -> bool:
    return any(_OUTSIDE.search(line) or speaks_of_device_or_collective(line) for line in lines)
