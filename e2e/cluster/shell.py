"""Running commands, waiting, and failing in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_POLL_S = 0.1
_started = time.monotonic()


class ClusterError(Exception):
    """What went wrong, as one sentence for a person."""


def say(text: str) -> None:
    print(f"{time.monotonic() - _started:6.1f}s  {text}", file=sys.stderr, flush=True)


def run(
    *argv: str | Path,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    check: bool = True,
) -> str:
    """Run a command and return what it printed; `log`: a file that gets all of it too.

    Raises ClusterError with the command's last words when it fails.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=stdin, env=env, cwd=cwd, capture_output=True, check=False, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError:
        raise ClusterError(f"the program {words[0]} is not installed") from None
    if log is not None:
        write(log, done.stdout + done.stderr)
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        last = said[-1] if said else f"exit code {done.returncode}"
        hint = f" (all of it: {log})" if log else ""
        raise ClusterError(f"`{' '.join(words[:6])}` failed: {last}{hint}")
    return done.stdout


def works(*argv: str | Path, env: Mapping[str, str] | None = None) -> bool:
    """Whether the command can be run and succeeds."""
    try:
        run(*argv, env=env)
    except ClusterError:
        return False
    return True


def until(condition: Callable[[], object], timeout_s: float, otherwise: str) -> None:
    """Wait for `condition`. Raises ClusterError with `otherwise` when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{otherwise} after {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    return path


def discard(folder: Path) -> None:
    """Remove a folder in which a command may have been killed that mounts things."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        run("umount", mount)
    if folder.exists():
        run("rm", "--recursive", "--force", "--one-file-system", folder)
