"""Which Python runs the scripts of a local run: the one in the user's PATH if it has the framework, or our own."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainmaster.contract.launch import LaunchRefused, parse
from trainmaster.contract.launch.framework_packages import PACKAGES
from trainmaster.contract.launch.python_options import is_python
from trainmaster.host import interpreters
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli.refusal import Refusal

_LIMIT_S = 30.0
_PROBE = """
import importlib.metadata, importlib.util, json, sys
package = sys.argv[1]
found = importlib.util.find_spec(package) is not None
try:
    found = importlib.metadata.version(package) if found else ""
except importlib.metadata.PackageNotFoundError:
    found = "of its own"
print("\\n" + json.dumps([sys.executable, sys.version.split()[0], found]))
"""


@dataclass(frozen=True)
class Interpreter:
    """The Python for scripts. `path`: what `python` means in a command; "": the interpreter of Trainmaster. `words`:
    which one it is, and why. `lacks`: it is known to lack the requested package."""

    path: str
    words: str
    lacks: bool = False


def of_job(file: Path, job: DistributedTrainingJob) -> Interpreter:
    """Return the interpreter of the job's scripts. `file`: where the job is written. Raise Refusal if the interpreter
    lacks the framework."""
    framework = job.spec.framework.value
    package = PACKAGES.get(framework, "torch")
    chosen = of_command(job.spec.command(), os.environ.get("PATH", os.defpath), package)
    if chosen.lacks and framework in PACKAGES:
        raise Refusal(
            f"{file}: spec.framework: {framework} needs the package {package}, and {sys.executable} does not "
            f"have it: install it there, or put the Python that has it first in PATH"
        )
    return chosen


def of_command(command: Sequence[str], search: str, package: str = "torch") -> Interpreter:
    """Return the interpreter that `python` means, with words about the one that runs a command. `search`, `package`:
    as in `choose`."""
    chosen = choose(search, package)
    try:
        program = parse(list(command)).argv[0]
    except LaunchRefused:
        return chosen
    if not is_python(program):
        return replace(chosen, lacks=False)  # It is unknown which Python the program starts, if any.
    if program in ("python", "python3", f"python3.{sys.version_info.minor}"):
        return chosen
    return replace(chosen, words=f"scripts run by {program}, which the command names", lacks=False)


@functools.cache
def choose(search: str, package: str = "torch") -> Interpreter:
    """Return the interpreter that ranks run. `search`: the user's PATH. `package`: a package that it must have."""
    own = sys.executable
    lacks = importlib.util.find_spec(package) is None
    found = shutil.which("python", path=search) or shutil.which("python3", path=search)
    if found is None:
        return Interpreter(
            "", f"scripts run by {_described(own, package)}, that of Trainmaster, since PATH has none", lacks
        )
    if _is_own(found):
        return Interpreter("", f"scripts run by {_described(own, package)}", lacks)
    probed = _probe(found, package)
    if probed is None:
        reason = f"{found}, which PATH has, can't be run"
        return Interpreter("", f"scripts run by {_described(own, package)}, that of Trainmaster: {reason}", lacks)
    path, version, its_package = probed
    if _is_own(path):  # `found` is a program that starts another one, as those of pyenv do.
        return Interpreter("", f"scripts run by {_described(own, package)}", lacks)
    if not its_package:
        reason = f"{path}, which PATH has, has no {package}"
        return Interpreter("", f"scripts run by {_described(own, package)}, that of Trainmaster: {reason}", lacks)
    return Interpreter(path, f"scripts run by {path} (Python {version}, {package} {its_package}), which PATH has")


def _is_own(program: str) -> bool:
    """Return whether a program is the Python of Trainmaster, by this or another name."""
    own = sys.executable
    # Two names in one folder mean the same environment, whatever each of them leads to.
    beside = os.path.realpath(os.path.dirname(program)) == os.path.realpath(os.path.dirname(own))
    return beside or interpreters.is_same(program, own)


def _described(own: str, package: str) -> str:
    try:
        version = f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        version = f"no {package}"
    return f"{own} (Python {sys.version.split()[0]}, {version})"


def _probe(program: str, package: str) -> tuple[str, str, str] | None:
    """Return (path, version, version of the package or "") of an interpreter; None if it cannot be run."""
    try:
        done = subprocess.run(
            [program, "-c", _PROBE, package], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S
        )
        path, version, found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return str(path), str(version), str(found)
