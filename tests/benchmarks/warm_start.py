"""Commands of benchmarks, started as tests start them: `trainmaster` comes from a warm interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import commands
from tests.e2e import harness
from tests.e2e.warm import COMMAND

_popen = commands.popen


def start_warm(command: list[str], variables: dict[str, str], output: Path) -> Any:
    """What `commands.popen` does."""
    if command[:3] == [sys.executable, "-m", COMMAND]:
        assert harness.interpreter is not None
        return harness.interpreter.start(command[3:], harness.run_environment())
    return _popen(command, variables, output)
