"""`trainmaster profile WHAT`: lets all ranks of a running training record their next steps.

The operator has no part in it. The request is a file that ranks read: in a run's output folder, or in the directory of
the agent of a pod, to which the right to `pods/exec` gives access. In the built-in trainer rank 0 passes it on; in
scripts each rank records by itself (`profile_of_scripts`).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from trainmaster.agent import frameworks
from trainmaster.agent.frameworks import Framework
from trainmaster.contract.wire import profile_records, profile_request
from trainmaster_operator.cli import output_folder, run_or_job
from trainmaster_operator.cli.cluster_connection import Target, connected
from trainmaster_operator.cli.fault_injection.inject_fault import Exec, agent_of, newest_pods, slots_in_order
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.stored_state import is_scripted, state_of
from trainmaster_operator.cli.terminal_text import without_controls
from trainmaster_operator.cli.trainer_tools import profile_of_scripts
from trainmaster_operator.cli.trainer_tools.profile_of_scripts import Wanted


def profile(what: str, wanted: Wanted, where: Where) -> int:
    """Request the recording. Return 0. Raise Refusal if nothing can be recorded."""
    if not 1 <= wanted.steps <= profile_request.MOST:
        raise Refusal(f"--steps {wanted.steps}: must be 1 to {profile_request.MOST}")
    if not 0 < wanted.wait_s < float("inf"):
        raise Refusal(f"--wait {wanted.wait_s:g}: must be a number of seconds above 0")
    out = run_or_job.of(what, where)
    if out is not None:
        return of_run(out, wanted)
    return asyncio.run(_profile(where, what, wanted))


def of_run(out: Path, wanted: Wanted) -> int:
    """Request the recording of a run. Return 0. Raise Refusal if there is no run, or if it is not running."""
    resource, goes_on = output_folder.look(out)
    if not goes_on:
        raise Refusal(f"{out}: this run is not running now; trainmaster run starts or continues it")
    _check(resource, str(out))
    place = out / profile_records.FOLDER
    if wanted.out is not None:
        raise Refusal(f"--out {wanted.out}: is for scripts on a cluster; the records of this run will be in {place}")
    if not is_scripted(resource):
        _ask(out, wanted.steps)
        sys.stdout.write(f"the next {wanted.steps} steps will be recorded; the page will be in {place}\n")
        return 0
    _ask(out, wanted.steps, profile_request.new_identity())
    sys.stdout.write(
        f"every rank will record its next {wanted.steps} steps; the records will be in {place}, and rank 0's log says "
        f"when\n{_if_unseen(resource)}"
    )
    return 0


def _ask(out: Path, steps: int, identity: str = "") -> None:
    try:
        profile_request.ask(out, steps, identity)
    except OSError as error:
        raise Refusal(f"{out}: the request cannot be written: {why(error)}") from None


async def _profile(where: Where, name: str, wanted: Wanted) -> int:
    async with connected(where) as target:
        job = await find(target, name)
        _check(job, f"{target.namespace}/{name}")
        if is_scripted(job):
            sys.stdout.write(
                f"asking every rank to record its next {wanted.steps} steps, and waiting for the records for at most "
                f"{wanted.wait_s:g} s\n{_if_unseen(job)}"
            )
            sys.stdout.flush()
            said = await profile_of_scripts.record(target, job, wanted, profile_of_scripts.asks(target))
        else:
            said = await of_job(target, job, wanted, agent_of(target))
        sys.stdout.write(said + "\n")
        return 0


async def of_job(target: Target, job: dict[str, Any], wanted: Wanted, in_pod: Exec) -> str:
    """Request the recording of a job of the built-in trainer, and return the answer of rank 0's agent. Raise
    Refusal."""
    named = f"{target.namespace}/{job['metadata']['name']}"
    if wanted.out is not None:
        raise Refusal(f"--out {wanted.out}: is for scripts; {named} puts its page next to its checkpoints")
    pods = await newest_pods(target, job)
    first = next(iter(slots_in_order(job, pods)), None)
    if first not in pods:
        raise Refusal(f"{named}: rank 0 has no running pod")
    done = await in_pod(pods[first], ["profile", str(wanted.steps)])
    if done.code:
        words = without_controls(" ".join(done.err.split())) or f"exit code {done.code}"
        raise Refusal(f"{pods[first]['metadata']['name']}: {words}")
    return without_controls(done.out).strip()


def _check(job: dict[str, Any], named: str) -> None:
    if is_scripted(job) and _framework_of(job).profiler is None:
        name = job["spec"]["framework"]
        raise Refusal(f"{named}: its framework is {name}, which has no profiler that could record steps")
    phase = state_of(job).phase
    if phase.finished:
        raise Refusal(f"{named}: has {phase.value.lower()}, so it has no next steps")


def _if_unseen(job: dict[str, Any]) -> str:
    """Return what to say of a job that has shown no step yet; "" if it has."""
    if state_of(job).progress.step:
        return ""
    unseen = _framework_of(job).unseen
    return f"no step has been seen yet, and nothing is recorded before one is{f': {unseen}' if unseen else ''}\n"


def _framework_of(job: dict[str, Any]) -> Framework:
    """Return the framework of a job with a script. Raise Refusal."""
    try:
        return frameworks.find(job["spec"]["framework"])
    except ValueError:
        name = job["metadata"]["name"]
        raise Refusal(f"{name}: another version of Trainmaster created this job") from None
