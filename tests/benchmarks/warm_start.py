"""Commands of benchmarks, started as tests start them: `trainmaster` comes from a warm interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e import harness
from tests.e2e.warm import COMMAND


def start_warm(command: list[str], variables: dict[str, str], output: Path) -> Any:
    """What `goodput_runners.popen` does."""
    if command[:3] == [sys.executable, "-m", COMMAND]:
        assert harness.interpreter is not None
        return harness.interpreter.start(command[3:], harness.run_environment())
    with output.open("wb") as file:
        return subprocess.Popen(command, env=variables, stdout=file, stderr=file, start_new_session=True)
