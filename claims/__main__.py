"""Runs the commands that show what README and docs claim, on a fresh clone of this repository, and prints a table.

Only what is committed is in the clone. It lies in a temporary folder, with a .venv of its own of several GB, and is
removed at the end. Figures are told as ranges, beside the machine's load. The exit code is 1 if a claim that is yes or
no does not hold, and 2 for bad input.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from claims import showing
from claims.listed import CLAIMS, SET_UP, Claim

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="show these claims, after the set-up")
    parser.add_argument("--cluster", action="store_true", help="show what needs a cluster too (see `make e2e`)")
    parser.add_argument("--here", action="store_true", help="use this working tree and its .venv, not a clone")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only) - {claim.name for claim in CLAIMS})
    if unknown:
        sys.stderr.write(f"--only {unknown[0]}: there are {', '.join(claim.name for claim in CLAIMS)}\n")
        return 2
    chosen = [claim for claim in CLAIMS if (not given.only or claim.name in given.only) and claim is not SET_UP]
    if not given.here:
        chosen.insert(0, SET_UP)
    with _here() if given.here else _fresh_clone() as clone:
        return _show_all(chosen, clone, given.cluster)


def _show_all(chosen: Sequence[Claim], clone: Path, with_cluster: bool) -> int:
    shown = []
    for claim in chosen:
        sys.stdout.write(f"{claim.name}: $ {claim.command}\n")
        sys.stdout.flush()
        shown.append(showing.show(claim, clone, with_cluster))
        sys.stdout.write(f"{claim.name}: {shown[-1].result}\n")
        if claim is SET_UP and not shown[-1].holds:
            break  # nothing else can be run without it
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    sys.stdout.write(f"\n{showing.table(shown)}\n\nLoad averages of the machine at the end: {load}\n")
    return showing.exit_code(shown)


@contextmanager
def _here() -> Iterator[Path]:
    yield ROOT


@contextmanager
def _fresh_clone() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="claims-") as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        yield clone


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the clone of several GB is removed then, too
    sys.exit(main())
