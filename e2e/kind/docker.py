"""Docker's command line: that of the docker at hand, or of our own where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.shell import ClusterError, run, works, write
from e2e.kind import engine
from e2e.kind.places import STATE

_CHOICE = STATE / "choice.json"


class Docker:
    def __init__(self, environment: Mapping[str, str], *, ours: bool) -> None:
        self.environment, self.ours = environment, ours

    def run(self, *words: str | Path, stdin: str = "") -> str:
        return run(*self._command(*words), stdin=stdin, env=self.environment)

    def works(self, *words: str | Path) -> bool:
        return works(*self._command(*words), env=self.environment)

    def composer(self) -> list[str]:
        """Return the words before a command of compose, a plugin of docker or a program; [] if there is none."""
        if self.works("compose", "version"):
            return self._command("compose")
        program = shutil.which("docker-compose", path=self.environment["PATH"])
        return [program] if program else []

    def beside(self, *command: str) -> str:
        """Run a command where the ports that containers publish are. Return what it printed, also if it fails."""
        return run(*(engine.in_its_network() if self.ours else ()), *command, check=False)

    def execute(self, node: str, *command: str, stdin: str = "") -> str:
        """Run a command in a node."""
        return self.run("exec", "--interactive", node, *command, stdin=stdin)

    def feed(self, node: str, file: Path, *command: str) -> None:
        """Run a command in a node with a file as its standard input."""
        with file.open("rb") as source:
            done = subprocess.run(
                self._command("exec", "--interactive", node, *command),
                stdin=source,
                env=self.environment,
                capture_output=True,
                check=False,
            )
        if done.returncode:
            raise ClusterError(f"`{' '.join(command[:6])}` on {node}: {done.stderr.decode(errors='replace').strip()}")

    def _command(self, *words: str | Path) -> list[str]:
        # The name is looked up on the PATH that the command itself will have.
        return [shutil.which("docker", path=self.environment["PATH"]) or "docker", *map(str, words)]


def start() -> Docker:
    """The docker that this cluster is in, or is going to be in."""
    docker = _at_hand()
    ours = json.loads(_CHOICE.read_text())["ours"] if _CHOICE.exists() else not docker.works("info")
    write(_CHOICE, json.dumps({"ours": ours}))
    if not ours:
        return docker
    engine.start()
    return _our_own()


def found() -> Docker | None:
    """The docker that this cluster is in, if it runs."""
    if not _CHOICE.exists():
        return None
    if json.loads(_CHOICE.read_text())["ours"]:
        return _our_own() if engine.running() else None
    return _at_hand()


def _at_hand() -> Docker:
    return Docker(dict(os.environ), ours=False)


def _our_own() -> Docker:
    return Docker(engine.environment(), ours=True)
