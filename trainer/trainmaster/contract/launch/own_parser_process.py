"""Reads a launcher's options with the launcher's own parser, in the interpreter that has it.

This imports torch, which takes seconds. So it is done once, when an agent starts or a person asks. It is not needed if
our table of torchrun's options knows all of the options, and an answer is kept in a folder, if there is one, for the
agents that start later on the same machine, also for those of the job's other pods.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainmaster.contract.launch.command_line import Around
from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launcher_option_tables import Launch, UnknownOption, read_by_tables
from trainmaster.contract.launch.launchers import ACCELERATE, DEEPSPEED, HOROVODRUN, Launcher
from trainmaster.contract.launch.own_parser import LIMIT_S, MARK

_PROGRAM = Path(__file__).with_name("own_parser.py")
# Pods of a job differ in these variables, and launchers read none of them.
_OURS = "TRAINMASTER_"
_TEMPORARY = "TMPDIR"
# Run from its text: the script's folder must not come first in sys.path, nor the current one.
_START = "import sys; del sys.path[0], sys.argv[0]; exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))"


class OwnParsers:
    """Reads the options of launchers for a command that will run in a folder with these variables."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        interpreter: Callable[[str], str] = lambda name: name,
        keep: str = "",
        folder: str = ".",
        asks: Callable[[str], None] = lambda launcher: None,
    ) -> None:
        """`interpreter` returns the program that runs a Python of this name. `keep` is the folder of kept answers; with
        "" they are not kept. `folder` is the current folder of the ranks. `asks` is called with the name of a launcher
        before `read` waits for its parser: this can take minutes, also if another process asks already."""
        self._environ = dict(environ)
        self._interpreter = interpreter
        self._keep = keep
        self._folder = folder
        self._asks = asks

    def read(self, launcher: Launcher, around: Around) -> Launch:
        """Return what the launcher would start. Raises LaunchRefused, in its own words where it has any."""
        # The tables have all options of these two. Asking DeepSpeed would import torch.
        if launcher.kind in (DEEPSPEED, HOROVODRUN):
            return read_by_tables(launcher)
        if launcher.kind != ACCELERATE and not any(name.startswith("PET_") for name in self._environ):
            with contextlib.suppress(UnknownOption):
                return read_by_tables(launcher)
        # Behind `uv run` and its kin the name means the interpreter of another environment.
        alone = around([launcher.python]) == [launcher.python]
        python = self._interpreter(launcher.python) if alone else launcher.python
        request = json.dumps({"launcher": launcher.kind, "options": launcher.options})
        argv = around([python, "-c", _START, str(_PROGRAM), request])
        name = name_of_answer(argv, self._environ, os.path.abspath(self._folder), alone=alone)
        answer = self._kept_answer(argv, name, launcher.kind)
        if "refused" in answer:
            raise LaunchRefused(f"{launcher.kind}: {answer['refused']}")
        if "missing" in answer:
            if launcher.kind == ACCELERATE:
                raise LaunchRefused(
                    f"{launcher.kind}: {answer['missing']} is not installed for {python}, which is to run the script: "
                    f"install it there, or start the script by [python, SCRIPT]"
                )
            return read_by_tables(launcher)
        return Launch(answer["kind"], answer["name"], answer["args"], answer["given"], answer["environment"])

    def _kept_answer(self, argv: list[str], name: str, launcher: str) -> dict[str, Any]:
        known = _read(Path(self._keep, f"{name}.json")) if self._keep else None
        if known is not None:
            return known
        self._asks(launcher)
        with _locked(self._keep, name) as kept:
            known = _read(kept)
            if known is not None:
                return known
            answer = self._ask(argv)
            if kept is not None and "files" in answer:
                kept.write_text(json.dumps(answer))
            return answer

    def _ask(self, argv: list[str]) -> dict[str, Any]:
        try:
            done = subprocess.run(
                argv,
                env=self._environ,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return {"refused": f"its own parser did not answer within {LIMIT_S:g} s"}
        except OSError as error:
            return {"refused": f"{argv[0]} can't be run: {error.strerror}"}
        line = next((line for line in reversed(done.stdout.splitlines()) if line.startswith(MARK)), None)
        if line is None:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return {"refused": f"its own parser can't be run by {argv[0]}: {last}"}
        answer: dict[str, Any] = json.loads(line[len(MARK) :])
        return answer


def name_of_answer(argv: list[str], environ: Mapping[str, str], folder: str, *, alone: bool) -> str:
    """Return the name under which an answer is kept. It is the same for all pods whose launcher gives the same answer.

    `folder` is the current folder of the ranks. `alone`: no wrapper or shell precedes the launcher. These may read any
    variable, such as the number of the pod. A launcher may read any variable of the user's.
    """
    if alone:
        environ = {n: value for n, value in environ.items() if not n.startswith(_OURS) and n != _TEMPORARY}
    content = json.dumps([argv, sorted(environ.items()), folder])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _locked(folder: str, name: str) -> Iterator[Path | None]:
    """A context with the file that keeps an answer, which no other process asks for meanwhile; None without a
    folder."""
    if not folder:
        yield None
        return
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = open(os.path.join(folder, f"{name}.lock"), "w")  # noqa: SIM115
    except OSError:
        yield None
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(folder, f"{name}.json")


def _read(kept: Path | None) -> dict[str, Any] | None:
    """Return a kept answer, or None if there is none or one of the files that it depends on has changed since."""
    if kept is None or not kept.exists():
        return None
    try:
        answer: dict[str, Any] = json.loads(kept.read_text())
        stamps = {path: os.stat(path).st_mtime_ns if os.path.exists(path) else None for path in answer["files"]}
    except (OSError, ValueError, KeyError):
        return None
    return answer if stamps == answer["files"] else None
