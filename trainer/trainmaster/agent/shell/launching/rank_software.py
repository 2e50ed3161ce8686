"""What a pod's ranks will run, as far as it is known without running or importing it. The agent tells the operator.

So the pods of a round are compared also where ranks don't meet at torch's store: under another framework, or in a
program that can't be looked into. It is read once, in the background, when the agent starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

from trainmaster import __version__
from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.contract.launch import Command
from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launchers import ACCELERATE
from trainmaster.contract.launch.python_options import is_python, read_python
from trainmaster.contract.wire import software_differences
from trainmaster.host import installed_versions

_LIMIT_S = 60.0
_MOST_BYTES = 1_000_000  # of a script that is searched for imports
_IMPORT = re.compile(rf"^\s*(?:import|from)\s+({'|'.join(software_differences.FRAMEWORKS)})\b", re.MULTILINE)


async def read(settings: Settings) -> dict[str, str]:
    """Return the program, and the versions of the interpreter and the packages that it will run with.

    A program that is no Python tells none of these versions, nor does an interpreter that can't be asked.
    """
    known = {**software_differences.program_of(settings.environ), software_differences.TRAINMASTER: __version__}
    command = settings.command
    names = [software_differences.TORCH, *frameworks_of(command)]
    if command.entry is not None or settings.own_loop:
        return {**known, **await asyncio.to_thread(installed_versions.versions, names)}
    if not is_python(command.argv[0]):
        return known
    return {**known, **await ask(command.argv[0], names, settings.environ)}


def frameworks_of(command: Command) -> list[str]:
    """Return the frameworks that a command's script says it imports, and that of its launcher."""
    found = ["accelerate"] if command.launcher == ACCELERATE else []
    entry = command.entry or _entry_of(command.argv)
    if entry is not None and entry["kind"] == "script":
        with contextlib.suppress(OSError), open(entry["path"], errors="replace") as file:
            found += _IMPORT.findall(file.read(_MOST_BYTES))
    return sorted(set(found))


def _entry_of(argv: list[str]) -> dict[str, Any] | None:
    if not is_python(argv[0]):
        return None
    try:
        return read_python(argv).entry
    except LaunchRefused:
        return None


async def ask(python: str, names: list[str], environ: dict[str, str]) -> dict[str, str]:
    """Return the versions that another interpreter reports as installed for it, or {} if it does not answer."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(python, "-c", Path(installed_versions.__file__).read_text(), *names),
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        told, _ = await asyncio.wait_for(process.communicate(), _LIMIT_S)
        versions = json.loads(told.splitlines()[-1])
    except (asyncio.TimeoutError, ValueError, IndexError):
        return {}
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return {str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {}
