"""`trainmaster restart NAME`: a job on a cluster saves, and continues in new pods with its current spec."""

from __future__ import annotations

import asyncio
import sys

from trainmaster_operator.cli import run_or_job
from trainmaster_operator.cli.cluster_connection import Target, connected
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cluster.port import JOB, Object


def restart(where: Where, name: str) -> int:
    """Ask the operator to restart the job. Return 0. Raise Refusal if the job does not run."""
    run_or_job.check_job(name, where, "to restart a run, stop it with Ctrl-C and give the same trainmaster run command")
    return asyncio.run(_restart(where, name))


async def _restart(where: Where, name: str) -> int:
    async with connected(where) as target:
        await ask(target, await find(target, name))
        return 0


async def ask(target: Target, job: Object) -> None:
    """Raise the number in the job's spec that asks for a restart. Raise Refusal if the job is finished or suspended."""
    name = job["metadata"]["name"]
    status = state_of(job)
    place = f"{target.namespace}/{name}"
    if status.phase.finished:
        raise Refusal(f"{place}: has {status.phase.value.lower()} already, so it cannot be restarted; submit it again")
    if job["spec"].get("suspend"):
        raise Refusal(
            f"{place}: is suspended, so it cannot be restarted; set spec.suspend to false to resume it; it "
            "then starts with its current spec"
        )
    number = max(job["spec"].get("restart", 0), status.restartObeyed) + 1
    # The patch has no resourceVersion, because the status of a running job changes every second. Two people who ask at
    # the same moment ask for the same number and get one restart.
    await target.cluster.patch(JOB, target.namespace, name, {"spec": {"restart": number}})
    sys.stdout.write(
        f"job {name} saves a checkpoint, and then restarts with its current spec; `trainmaster status {name} "
        f"-n {target.namespace} --watch` shows its progress\n"
    )
