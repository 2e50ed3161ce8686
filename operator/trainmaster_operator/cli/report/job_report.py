"""`trainmaster report NAME`: a page about a job on a cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from trainmaster_operator.cli.cluster_connection import connected, find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.report.run_report import render_job, save


def report_of_job(where: Where, name: str, file: Path | None) -> int:
    """Write the page to `file`, or to NAME-report.html. Raises Refusal when there is no such job."""
    return asyncio.run(_report(where, name, file or Path(f"{name}-report.html")))


async def _report(where: Where, name: str, path: Path) -> int:
    async with connected(where) as target:
        job = await find(target, name)
    job["metadata"].pop("managedFields", None)
    save(path, render_job(job))
    sys.stdout.write(f"{path}\n")
    return 0
