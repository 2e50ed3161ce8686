"""Commands of benchmarks, started as tests start them: `trainmaster` comes from a warm interpreter."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks import commands
from tests.e2e import harness
from tests.e2e.warm import COMMAND, WarmRun

_popen = commands.popen


def start_warm(command: list[str], variables: dict[str, str], output: Path) -> Any:
    """What `commands.popen` does."""
    if command[:3] != [sys.executable, "-m", COMMAND]:
        return _popen(command, variables, output)
    assert harness.interpreter is not None
    run = harness.interpreter.start(command[3:], harness.run_environment())
    # Opened here: the folder may be gone when the command is.
    threading.Thread(target=_keep, args=(run, output.open("w")), daemon=True).start()
    return run


def _keep(run: WarmRun, file: Any) -> None:
    """Write what a command says into a file until its end, so that it never waits for a reader."""
    with file, run.stdout:
        for line in run.stdout:
            file.write(line)
