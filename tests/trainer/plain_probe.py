"""A script as plain Python runs it, called where torch is imported already, by `Ranks.call`."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from pathlib import Path

from tests.trainer.forks import forked


def run(script: str) -> tuple[int, str]:
    """(exit code, output) of a script in its folder. It has no variable of an agent or of a launcher."""
    with tempfile.NamedTemporaryFile() as output:

        def main() -> None:
            os.chdir(Path(script).parent)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = [script]
            runpy.run_path(script, run_name="__main__")

        _, status = os.waitpid(forked(main), 0)
        return os.waitstatus_to_exitcode(status), Path(output.name).read_text()
