"""Whether a program that ended would fail in the same way again, from its exit code, exceptions and last lines.

Only the program's own words count. If memory, a device, a network or a file may be the reason, a restart may succeed,
so the answer is that it is not known. The module is pure.
"""

from __future__ import annotations

import re

from trainmaster.agent.shell.ranks.last_output import USAGE_ERROR, last_said
from trainmaster.contract.wire.causes_and_exit_codes import Recurrence
from trainmaster.host.failure_signatures import speaks_of_device_or_collective, speaks_of_outside

_LAST_CODE = 127  # higher ones are a shell's for signals

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
            return Recurrence.UNKNOWN if speaks_of_outside(said[0]) else Recurrence.CERTAIN
    return Recurrence.LIKELY if said and not _speak_of_outside(said) else Recurrence.UNKNOWN


def _speak_of_outside(lines: list[str]) -> bool:
    return any(speaks_of_outside(line) or speaks_of_device_or_collective(line) for line in lines)
