"""`trainmaster profile WHAT`: lets all ranks of a running training record their next steps.

The operator has no part in it. The request is a file that rank 0 reads: in a run's output folder, or in the
directory of the agent of rank 0's pod, to which the right to `pods/exec` gives access.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from trainmaster.contract.wire import profile_request
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.cli import output_folder, run_or_job
from trainmaster_operator.cli.cluster_connection import Target, connected
from trainmaster_operator.cli.fault_injection.inject_fault import Exec, agent_of, newest_pods, slots_in_order
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import state_of


def profile(what: str, steps: int, where: Where) -> int:
    """Request the recording. Return 0. Raise Refusal if nothing can be recorded."""
    if not 1 <= steps <= profile_request.MOST:
        raise Refusal(f"--steps {steps}: must be 1 to {profile_request.MOST}")
    out = run_or_job.of(what, where)
    if out is not None:
        return of_run(out, steps)
    return asyncio.run(_profile(where, what, steps))


def of_run(out: Path, steps: int) -> int:
    """Request the recording of a run. Return 0. Raise Refusal if there is no run, or if it is not running."""
    resource = output_folder.read_run(out)
    if not output_folder.is_held(out):
        raise Refusal(f"{out}: this run is not running now; trainmaster run starts or continues it")
    _check(resource, str(out))
    profile_request.ask(out, steps)
    sys.stdout.write(f"the next {steps} steps will be recorded; the page will be in {out / 'profile'}\n")
    return 0


async def _profile(where: Where, name: str, steps: int) -> int:
    async with connected(where) as target:
        sys.stdout.write(await of_job(target, name, steps, agent_of(target)) + "\n")
        return 0


async def of_job(target: Target, name: str, steps: int, in_pod: Exec) -> str:
    """Request the recording of a job, and return the answer of rank 0's agent. Raise Refusal."""
    job = await find(target, name)
    _check(job, f"{target.namespace}/{name}")
    pods = await newest_pods(target, job)
    first = next(iter(slots_in_order(job, pods)), None)
    if first not in pods:
        raise Refusal(f"{target.namespace}/{name}: rank 0 has no running pod")
    done = await in_pod(pods[first], ["profile", str(steps)])
    if done.code:
        words = " ".join(done.err.split()) or f"exit code {done.code}"
        raise Refusal(f"{pods[first]['metadata']['name']}: {words}")
    return done.out.strip()


def _check(job: dict[str, Any], named: str) -> None:
    framework = job["spec"].get("framework", Framework.TRAINMASTER.value)
    if framework != Framework.TRAINMASTER.value:
        raise Refusal(f"{named}: its framework is {framework}; only Trainmaster's own trainer can record steps")
    phase = state_of(job).phase
    if phase.finished:
        raise Refusal(f"{named}: has {phase.value.lower()}, so it has no next steps")
