"""How long it takes from an empty machine to a job that has recovered: `python -m e2e.stopwatch`.

Follows the first section of docs/install.md to the letter: bash runs each block that its mark gives to this program, in
the order of the page, and what one block exports the next one has. The cluster is taken down at the end, whatever
happens. `--write` puts the minutes into the page, which has a place for a run from nothing and one for a run that finds
the programs and images of an earlier one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.containerd import LAYOUT
from e2e.cluster.images import BUILT
from e2e.cluster.places import BIN, CACHE, REPOSITORY, STATE

PAGE = REPOSITORY / "docs" / "install.md"
FROM_NOTHING = "from nothing"
AGAIN = "with the programs and images of an earlier run"
_BEGIN = "<!-- stopwatch, {start}: written by `python -m e2e.stopwatch --write` -->\n"
END = "<!-- end of stopwatch -->"
_MARK = "<!-- illustrative: e2e/stopwatch.py runs it and measures each step: "


class StopwatchError(Exception):
    """Why there is no time to tell, as one sentence."""


@dataclass(frozen=True)
class Step:
    name: str
    script: str


def steps_of(page: str) -> list[Step]:
    """Return the blocks of a page that are to be measured, in their order. Raises StopwatchError if there is none."""
    found = []
    for part in page.split(_MARK)[1:]:
        name, _, rest = part.partition(" -->\n```console\n")
        block, fence, _ = rest.partition("\n```")
        if not fence:
            raise StopwatchError(f"no console block stands directly below the mark of {name.splitlines()[0]!r}")
        lines, continued = [], False
        for line in block.splitlines():
            if line.startswith("$ ") or continued:
                lines.append(line.removeprefix("$ "))
            continued = line.endswith("\\")
        found.append(Step(name, "\n".join(lines)))
    if not found:
        raise StopwatchError("the page has no block for the stopwatch")
    return found


def run(step: Step, environment: Mapping[str, str]) -> tuple[float, dict[str, str]]:
    """Run a step's commands. Return the seconds that they took and the environment that they leave.

    Raises StopwatchError when one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder, "environment")
        script = f"set -euo pipefail\n{step.script}\nenv --null > {left}\n"
        began = time.monotonic()
        done = subprocess.run(["bash", "-c", script], cwd=REPOSITORY, env=dict(environment), check=False)
        took_s = time.monotonic() - began
        if done.returncode:
            raise StopwatchError(f"the step {step.name!r} failed with exit code {done.returncode}")
        pairs = (entry.partition("=") for entry in left.read_text().split("\0") if entry)
        return took_s, {key: value for key, _, value in pairs}


def measure(steps: list[Step], environment: Mapping[str, str], say: Callable[[str], None]) -> list[tuple[str, float]]:
    """Run the steps one after another. Return the seconds of each. Raises StopwatchError."""
    times, now = [], dict(environment)
    for step in steps:
        say(f"{step.name} ...")
        took_s, now = run(step, now)
        times.append((step.name, took_s))
        say(f"{step.name}: {took_s:.0f} s")
    return times


def start_of_this_machine() -> str:
    """Return what a run here finds: FROM_NOTHING or AGAIN. Raises StopwatchError if it is a part of what it needs."""
    # Not whether the cache is there: each command makes it, for a lock.
    found = [*((BIN / f".{name}").exists() for name in ("kubernetes", "helm")), set(BUILT) <= set(LAYOUT.digests())]
    if any(found) != all(found):
        raise StopwatchError(f"an earlier run was ended before it had built everything: remove {CACHE} and try again")
    return AGAIN if all(found) else FROM_NOTHING


def begin_of(start: str) -> str:
    """Return the line of a page below which the times stand of a run that starts so: FROM_NOTHING or AGAIN."""
    return _BEGIN.format(start=start)


def table(times: list[tuple[str, float]], machine: str) -> str:
    """Return the times as a table in minutes, with a sentence about where they come from."""
    rows = ["| step | minutes |", "| --- | --- |", *(f"| {name} | {took_s / 60:.1f} |" for name, took_s in times)]
    total_s = sum(took_s for _, took_s in times)
    return "\n".join([*rows, f"| all of it | {total_s / 60:.1f} |", "", machine, ""])


def with_table(page: str, text: str, start: str) -> str:
    """Return the page with the table in the place for runs that start so. Raises StopwatchError if it has none."""
    before, found, rest = page.partition(begin_of(start))
    _, end, after = rest.partition(END)
    if not (found and end):
        raise StopwatchError(f"the page has no place for the table: {begin_of(start).strip()} and {END}")
    return f"{before}{found}{text}{end}{after}"


def machine(start: str, remark: str = "") -> str:
    """Return the sentence about where times come from, with a remark of the person who measured."""
    told = f"Measured by `python -m e2e.stopwatch --write` on {os.cpu_count()} cores, {start}."
    return f"{told} {remark}" if remark else told


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.stopwatch", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the minutes of each step into docs/install.md")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    words = "what else the page must say of the machine, as a sentence"
    parser.add_argument("--remark", default="", metavar="SENTENCE", help=words)
    options = parser.parse_args(arguments)
    try:
        if STATE.exists():
            raise StopwatchError("a cluster of `make cluster` is up already: end it by `make cluster-down`")
        page, start = PAGE.read_text(encoding="utf-8"), start_of_this_machine()
        with_table(page, "", start)  # before an hour is spent
        path = f"{REPOSITORY / '.venv' / 'bin'}:{os.environ['PATH']}"
        try:
            times = measure(steps_of(page), {**os.environ, "PATH": path}, lambda words: print(words, flush=True))
        finally:
            if not options.keep:
                subprocess.run(["make", "cluster-down"], cwd=REPOSITORY, check=False)
    except StopwatchError as error:
        sys.stderr.write(f"e2e.stopwatch: {error}\n")
        return 2
    text = table(times, machine(start, options.remark))
    print(text)
    if options.write:
        PAGE.write_text(with_table(page, text, start), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
