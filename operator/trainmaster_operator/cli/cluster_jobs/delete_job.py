"""`trainmaster delete NAME`: deletes a job on a cluster."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from trainmaster_operator.cli import run_or_job
from trainmaster_operator.cli.cluster_connection import Target, connected
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cluster.port import JOB, NotFound


def delete(where: Where, name: str) -> int:
    """Delete a job. Return 0. Raise Refusal if there is no such job."""
    run_or_job.check_job(name, where, "to delete a run, delete its folder")
    return asyncio.run(_delete(where, name))


async def _delete(where: Where, name: str) -> int:
    async with connected(where) as target:
        await remove(target, name)
        return 0


async def remove(target: Target, name: str) -> None:
    """Delete a job and say so. Raise Refusal if there is no such job."""
    job = await find(target, name)
    with suppress(NotFound):  # Somebody else has deleted it in the meantime.
        await target.cluster.delete(JOB, target.namespace, name, uid=job["metadata"]["uid"])
    sys.stdout.write(f"job {name} is deleted; its pods are being deleted\n")
