"""The dashboards as JSON: `python -m charts.dashboards` writes them into the chart. They can be imported from there.

With `--check` nothing is written; the exit code is 1, with a diff, if a file is stale.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from charts.dashboards.all_jobs_dashboard import fleet
from charts.dashboards.one_job_dashboard import job
from charts.dashboards.operator_dashboard import operator
from charts.dashboards.recovery_dashboard import recovery

FOLDER = Path(__file__).parents[1] / "trainmaster" / "files" / "dashboards"
DASHBOARDS: tuple[Callable[[], Any], ...] = (fleet, job, recovery, operator)


def generated(folder: Path = FOLDER) -> Iterator[tuple[Path, str]]:
    """Yield each dashboard's file and its JSON."""
    for make in DASHBOARDS:
        built = make()
        yield folder / f"{built.uid}.json", JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def main(arguments: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Write or check the files. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m charts.dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff when one is stale")
    options = parser.parse_args(arguments)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = dict(generated(folder))
    stale = 0
    for path in sorted({*wanted, *folder.glob("*.json")}):
        current, text = path.read_text() if path.exists() else "", wanted.get(path, "")
        if current == text:
            continue
        if options.check:
            lines = current.splitlines(keepends=True), text.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(*lines, path.name, "generated"))
            sys.stderr.write(f"{path.name} is stale: run `make generate`\n")
            stale = 1
        elif text:
            path.write_text(text)
        else:
            path.unlink()  # of a dashboard that is no more
    return stale


if __name__ == "__main__":
    sys.exit(main())
