"""`trainmaster fault NAME FAULT...`: breaks something in a job on a cluster, with the rights of the user.

The operator has no part in it. Faults of ranks and agents are requested by a command in the pod's container, which
needs the right to `pods/exec`; a pod is killed by deleting it. A user without these rights can break nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import ValidationError

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli import run_or_job
from trainmaster_operator.cli.cluster_connection import Target, connected
from trainmaster_operator.cli.fault_injection import run_faults
from trainmaster_operator.cli.fault_injection.fault_kinds import NOT_ON_A_CLUSTER
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import slots_in_rank_order, state_of
from trainmaster_operator.cli.terminal_text import without_controls
from trainmaster_operator.cluster.kubernetes_exec import TIMEOUT_S, Done, execute
from trainmaster_operator.cluster.port import POD, Conflict, NotFound, Object

KILL_GRACE_S = 1  # The smallest grace period that an API server passes on to a kubelet.

Exec = Callable[[Object, list[str]], Awaitable[Done]]
"""(pod, what follows the agent's own command) -> the result."""


def fault(where: Where, name: str, texts: Sequence[str]) -> int:
    """Request the faults. Return 0 when all were requested. Raise Refusal before anything is done if one of them is
    invalid."""
    run_or_job.check_job(name, where, "for a run on this machine, use trainmaster run --fault")
    return asyncio.run(_fault(where, name, texts))


async def _fault(where: Where, name: str, texts: Sequence[str]) -> int:
    async with connected(where) as target:
        await break_things(target, name, texts, agent_of(target))
        return 0


def agent_of(target: Target) -> Exec:
    """Return a function that runs the agent's command in a pod."""

    async def in_pod(pod: Object, words: list[str]) -> Done:
        return await run_agent(target, pod, words)

    return in_pod


async def run_agent(
    target: Target,
    pod: Object,
    words: list[str],
    timeout_s: float = TIMEOUT_S,
    receive: Callable[[bytes], None] | None = None,
) -> Done:
    """Run the agent's command in a pod, as `execute` does."""
    container = pod["spec"]["containers"][0]
    command = [*(container.get("command") or []), *words]
    connection = target.cluster.connection  # type: ignore[attr-defined]  # it is a KubernetesCluster
    name = pod["metadata"]["name"]
    return await execute(connection, target.namespace, name, container["name"], command, timeout_s, receive)


async def break_things(target: Target, name: str, texts: Sequence[str], in_pod: Exec) -> None:
    """Request the faults one after the other, and print each result. Raise Refusal."""
    job = await find(target, name)
    try:
        spec = DistributedTrainingJob.model_validate(job).spec
    except ValidationError:
        raise Refusal(f"{target.namespace}/{name}: another version of Trainmaster created this job") from None
    status = state_of(job)
    if status.phase.finished:
        raise Refusal(
            f"{target.namespace}/{name}: the job has ended ({status.phase.value}), so nothing in it can be broken"
        )
    wanted = json.loads(run_faults.encoded(texts, spec, "", now=True))
    problems = [
        f"fault {text}: {NOT_ON_A_CLUSTER[one['kind']]}"
        for text, one in zip(texts, wanted, strict=True)
        if one["kind"] in NOT_ON_A_CLUSTER
    ]
    problems += [
        f"fault {text}: on a cluster, a pod can only be killed now: leave out the step"
        for text, one in zip(texts, wanted, strict=True)
        if one["kind"] == "kill-pod" and one["step"]
    ]
    problems += [
        f"fault {text}: the job has completed step {status.progress.step} already; give a later step, or no "
        f"step: then the fault happens now"
        for text, one in zip(texts, wanted, strict=True)
        if 0 < one["step"] <= status.progress.step
    ]
    if problems:
        raise Refusal(*problems)
    for text, one in zip(texts, wanted, strict=True):
        sys.stdout.write(f"{text}: {await _do(target, job, one, in_pod)}\n")


async def _do(target: Target, job: Object, wanted: dict[str, Any], in_pod: Exec) -> str:
    """Return what was done. Raise Refusal."""
    pods = await newest_pods(target, job)
    slots = slots_in_order(job, pods)
    per_pod = job["spec"]["workers"].get("ranksPerPod", 1)
    place = wanted["rank"] // per_pod
    slot = slots[place] if place < len(slots) else -1
    if wanted["kind"] == "lose-store" and not wanted["step"]:
        return await _first_that_can([pods[s] for s in slots if s in pods], wanted, in_pod)
    if slot not in pods:
        raise Refusal(f"rank {wanted['rank']} has no running pod")
    if wanted["kind"] == "kill-pod":
        return await _delete(target, pods[slot])
    return await _first_that_can([pods[slot]], wanted, in_pod)


def slots_in_order(job: Object, pods: dict[int, Object]) -> list[int]:
    """Return the slots in rank order: those of the open round, or else of the existing pods."""
    return slots_in_rank_order(job) or sorted(pods)


async def newest_pods(target: Target, job: Object) -> dict[int, Object]:
    """Return the job's newest running pod of each slot."""
    listing = await target.cluster.list(POD, target.namespace, {f"{GROUP}/job": job["metadata"]["name"]})
    found: dict[int, Object] = {}
    for pod in listing.items:
        labels = pod["metadata"].get("labels") or {}
        running = (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        slot = labels.get(f"{GROUP}/slot", "")
        if running and slot.isdecimal() and labels.get(f"{GROUP}/role") == "worker":
            known = found.get(int(slot))
            if known is None or _incarnation(known) < _incarnation(pod):
                found[int(slot)] = pod
    return found


def _incarnation(pod: Object) -> int:
    return int(pod["metadata"]["labels"].get(f"{GROUP}/incarnation") or 0)


async def _first_that_can(pods: Sequence[Object], wanted: dict[str, Any], in_pod: Exec) -> str:
    reason = "the job has no running pod"
    for pod in pods:
        done = await in_pod(pod, ["fault", json.dumps(wanted)])
        if done.code == 0:
            return without_controls(done.out).strip()
        words = without_controls(" ".join(done.err.split())) or f"exit code {done.code}"
        reason = f"{pod['metadata']['name']}: {words}"
    raise Refusal(reason)


async def _delete(target: Target, pod: Object) -> str:
    meta = pod["metadata"]
    try:
        await target.cluster.delete(POD, target.namespace, meta["name"], uid=meta["uid"], grace_s=KILL_GRACE_S)
    except (NotFound, Conflict):
        raise Refusal(f"{meta['name']} ended before it could be killed") from None
    return f"pod {meta['name']} is deleted"
