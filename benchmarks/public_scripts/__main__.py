"""Public scripts under torchrun and under `trainmaster run`, calm and with a killed process.

    python -m benchmarks.public_scripts --sources DIR [--only NAME ...] [--no-pauses] [--seconds 3600]

DIR has a snapshot of each repository, in a folder by its name (`DIR/pytorch/examples`), at the commit that the table
of scripts names; `--list` prints both. Nothing is downloaded. Each script is run as it is, but for the changes that the
table has and explains. Each run is added to the file of results once it is over, and isn't made again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import commands, record
from benchmarks.public_scripts.page import RESULTS, SCRIPTS
from benchmarks.public_scripts.runs import OURS, PEER, run
from benchmarks.public_scripts.scripts import BadSources, PublicScript, check_chosen
from benchmarks.public_scripts.stamps import Kill


def main(arguments: Sequence[str] | None = None, scripts: Sequence[PublicScript] = SCRIPTS) -> int:
    given = read(arguments, [script.name for script in scripts])
    if given.list:
        for script in scripts:
            print(f"{script.repository} {script.commit} {script.name}")
        return 0
    deadline = time.monotonic() + given.seconds
    for script in scripts:
        if given.only and script.name not in given.only:
            continue
        for killed in (False, True):
            for system in given.systems:
                if any(is_of(row, script, system, killed) for row in record.read_rows(given.results)):
                    continue
                if time.monotonic() > deadline:
                    print("not over yet: the same command goes on", flush=True)
                    return 0
                kill = Kill(script.victim, script.kill_step) if killed else None
                try:
                    pace_s = script.pace_s if killed and not given.no_pauses else 0.0
                    with commands.sigterm_exits():
                        row = run(script, given.sources, system, kill, pace_s, script.limit_s * given.patience)
                except BadSources as error:
                    sys.stderr.write(f"benchmarks.public_scripts: {error}\n")
                    return 2
                record.append_row(given.results, row)
                print(told(row), flush=True)
    return 0


def is_of(row: dict[str, Any], script: PublicScript, system: str, killed: bool) -> bool:
    return (row["script"], row["system"], row["killed"]) == (script.name, system, killed)


def told(row: dict[str, Any]) -> str:
    """Return what a person reads of a run."""
    kind = "killed" if row["killed"] else "calm"
    times = " ".join("never" if seconds is None else f"{seconds:.2f} s" for seconds in row["recoveries_s"])
    return (
        f"{row['script']:34} {row['system']:11} {kind:6} exit {row['exit_code']}, {row['steps']} steps, "
        f"{row['seconds']:.0f} s, end {row['end'] or 'none'}" + (f", back after {times}" if times else "")
    )


def read(arguments: Sequence[str] | None, names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.public_scripts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, default=Path(), metavar="DIR", help="folder of the snapshots")
    parser.add_argument(
        "--list", action="store_true", help="print the repositories with their commits, and the scripts"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these scripts only")
    parser.add_argument("--systems", nargs="+", choices=(PEER, OURS), default=[PEER, OURS])
    parser.add_argument("--no-pauses", action="store_true", help="kill before a zygote has learned what to import")
    parser.add_argument("--patience", type=float, default=1.0, help="times the seconds that a run may take")
    parser.add_argument("--results", type=Path, default=RESULTS, help="runs that are there already are not made again")
    parser.add_argument("--seconds", type=float, default=86400.0, help="begin no further run after so many")
    given = parser.parse_args(arguments)
    check_chosen(parser, given, names)
    return given


if __name__ == "__main__":
    sys.exit(main())
