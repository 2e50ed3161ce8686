"""Shows claims: runs the command of each in a clone, and puts what came of it into a table.

A claim with figures has no threshold: its figures are told as a range. It can't fail to hold, only to be measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from claims.listed import Claim, Samples

LOGS = "runs/claims"


@dataclass(frozen=True)
class Shown:
    """What came of a claim. `holds`: None if it has no yes or no."""

    claim: Claim
    holds: bool | None
    result: str
    seconds: float = 0.0


ACTIVATE = ". .venv/bin/activate"
"""What the README says before it gives any command. There is nothing to activate before the set-up."""


def show(claim: Claim, clone: Path, with_cluster: bool) -> Shown:
    """Run the claim's command in `clone` to its end. Its output is in a file below `runs/claims` there."""
    if claim.needs_cluster and not with_cluster:
        return Shown(claim, None, "not run: it needs a cluster (--cluster)")
    log = clone / LOGS / f"{claim.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    files = [figure.path(clone) for figure in claim.figures if isinstance(figure, Samples)]
    before = {path: _stamp(path) for path in files}
    started = time.monotonic()
    with log.open("w") as file:
        activated = f"{ACTIVATE} && " if (clone / ".venv" / "bin" / "activate").exists() else ""
        command = ["bash", "-o", "pipefail", "-c", activated + claim.command]
        code = _run(command, clone, file)
    seconds = time.monotonic() - started
    said = log.read_text(errors="replace")
    if claim.figures:
        # The clone has the samples that are committed.
        stale = {path for path in files if _stamp(path) == before[path]}
        return Shown(claim, None, _figures(claim, clone, said, stale, code), seconds)
    if code == 0:
        return Shown(claim, True, "holds", seconds)
    last = " / ".join(line.strip() for line in said.splitlines()[-3:])
    return Shown(claim, False, f"DOES NOT HOLD (exit code {code}): {last}", seconds)


def _run(command: list[str], clone: Path, output: IO[str]) -> int:
    """The exit code. If this process is told to end meanwhile, nothing that the command started goes on."""
    process = subprocess.Popen(command, cwd=clone, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written; None if it does not exist."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _figures(claim: Claim, clone: Path, said: str, stale: set[Path], code: int) -> str:
    told = []
    for figure in claim.figures:
        try:
            if isinstance(figure, Samples) and figure.path(clone) in stale:
                raise LookupError(f"the command has not written {figure.file}.json (exit code {code})")
            told.append(in_words(*figure.read(clone, said)))
        except (LookupError, OSError, ValueError) as error:
            told.append(f"not measured: {error}")
    return "; ".join(told)


def in_words(figures: list[float], unit: str) -> str:
    """Return figures as a range, with their number."""
    low, high = (f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}" for number in (min(figures), max(figures)))
    if len(figures) == 1:
        return f"{low} {unit}"
    return f"{low} to {high} {unit} ({len(figures)} samples)"


def table(shown: Iterable[Shown]) -> str:
    """Return the table for a person: each claim, what came of it, and the command that shows it."""
    lines = []
    for one in shown:
        lines += [
            f"{one.claim.name}: {one.claim.says}",
            f"    {one.result}",
            f"    $ {one.claim.command}    ({one.seconds:.0f} s)",
        ]
    return "\n".join(lines)


def exit_code(shown: Iterable[Shown]) -> int:
    """Return 1 if a claim that is yes or no does not hold; figures decide nothing."""
    return int(any(one.holds is False for one in shown))
