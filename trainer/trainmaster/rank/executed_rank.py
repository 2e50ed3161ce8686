"""Starts an executed rank under observation: an interpreter gets here what a fork of the zygote already has."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainmaster.host.own_package import code_of_call

ENTRY = "TRAINMASTER_ENTRY"
"""The variable with the entry that an executed rank runs. A program that is executed as it is does not have it."""


def command(entry: dict[str, Any], flags: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the argument list, and the additional environment variables, that run `entry` with this interpreter."""
    return [sys.executable, *flags, "-c", code_of_call(__name__, "main")], {ENTRY: json.dumps(entry)}


def main() -> None:
    """Run the entry that the environment names."""
    entry = json.loads(os.environ.pop(ENTRY))
    for name in ("TRAINMASTER_PROGRESS_FD", "TRAINMASTER_CHANNEL_FD"):
        if name in os.environ:
            os.set_inheritable(int(os.environ[name]), False)
    from trainmaster.rank import executed_rank_observation, program_replacement, script_runner

    executed_rank_observation.claim()
    program_replacement.install()
    sys.exit(script_runner.run(entry))
