"""`trainmaster submit job.yaml`: creates a job on a cluster."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from trainmaster_operator.cli import operator_presence
from trainmaster_operator.cli.cluster_connection import Target, connected, one_line
from trainmaster_operator.cli.display import live_display
from trainmaster_operator.cli.display.watch_job import follow
from trainmaster_operator.cli.job_files.dry_run import try_job
from trainmaster_operator.cli.job_files.job_document import Document, in_namespace
from trainmaster_operator.cli.job_files.validate_job import load_job, warn
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cluster.port import JOB, AlreadyExists, Invalid, Object


def submit(where: Where, file: Path, watching: bool, plain: bool) -> int:
    """Create the job of a file. Return 0; with `watching`, return 0 if the job succeeds and 1 otherwise. Raise
    Refusal if nothing was created."""
    document, given = load_job(file, on_cluster=True)
    warn(given, on_cluster=True)
    return asyncio.run(_submit(where, document, watching, plain))


async def _submit(where: Where, document: Document, watching: bool, plain: bool) -> int:
    async with connected(where) as target:
        job = await create(target, document, where.namespace)
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        if watching:
            return await follow(target, job, lambda scene: live_display.choose(scene, plain))
        sys.stdout.write(
            f"job {name} is created; `trainmaster status {name} -n {namespace} --watch` shows its progress\n"
        )
        gone = await operator_presence.absence_of_any(target.cluster, time.time())
        if gone is not None:
            sys.stdout.write(f"The job waits. {gone.sentence}\n")
        return 0


async def create(target: Target, document: Document, asked: str | None) -> Object:
    """Create a job after a dry run of it and of one of its pods, and return it as stored. `asked`: the namespace of
    the command line. Raise Refusal."""
    job = in_namespace(document, target.namespace, asked)
    meta = job["metadata"]
    try:
        await try_job(target, document, job)
        return await target.cluster.create(JOB, job)
    except AlreadyExists:
        raise Refusal(
            f"{meta['namespace']}/{meta['name']}: a job with this name exists already; delete it first, or "
            "choose another name"
        ) from None
    except Invalid as error:
        raise Refusal(f"{document.file}: the cluster refuses the job: {one_line(error)}") from None
