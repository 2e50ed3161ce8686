"""How the trainer's commands end: with a sentence about what was done, or one sentence per problem on stderr and exit
code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.errors import TrainmasterError


def run(work: Callable[[], str], out: Path) -> int:
    """Print what `work` returns, or the problem, and return the exit code. `out` is the path that `work` writes."""
    try:
        said = work()
    except TrainmasterError as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(f"{error.filename or out}: {os.strerror(error.errno) if error.errno else error}")
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(said + "\n")
    return ExitCode.OK


def _refused(text: str) -> int:
    for line in text.splitlines():
        sys.stderr.write(f"trainmaster: {line}\n")
    return ExitCode.CONFIG_ERROR
