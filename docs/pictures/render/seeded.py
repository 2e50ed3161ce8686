"""The twelve incidents that on-call has to understand from the dashboards alone: how each is seeded, and the answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.pictures.render.stage import LIMIT_S, PACE_S, SAVE_EVERY, STEPS, Cast, Stage, paced
from trainmaster.contract.wire import ExitCode
from trainmaster_operator.cluster.port import LEASE, POD, Forbidden, Object
from trainmaster_operator.local.inherited_variables import base_environment
from trainmaster_operator.local.process_kubelet import LOST
from trainmaster_operator.planning.facts.job_state import JobPhase

LIMIT_BYTES = 2**30
"""The memory limit of the operator's container, as the chart has it."""
SLOW = Path(__file__).with_name("slow")

RUN = "a real local run"
NO_CLUSTER = "the real operator and real runs; what a cluster does is done to the store"


@dataclass(frozen=True)
class Incident:
    """`play`: what is done once the healthy jobs are submitted. `seconds`: for so long it is scraped when that is done.

    `cause` and `command`: what a reader of the pictures should name. `how`: where the data are from.
    """

    number: int
    name: str
    play: Callable[[Stage, Incident], Awaitable[None]]
    ill: tuple[Cast, ...]
    healthy: tuple[Cast, ...]
    cause: str
    command: str
    how: str = RUN
    seconds: float = 30.0
    leak_bytes: float = 0.0

    @property
    def answer(self) -> str:
        """The jobs that are ill."""
        return " and ".join(map(str, self.ill)) or "no job: the operator"


# -- plays: each returns when the incident is under way


async def crash_loop(stage: Stage, incident: Incident) -> None:
    await stage.submit(incident.ill[0], *again("raise", 30))
    await stage.until(lambda: len(stage.status(incident.ill[0]).recoveries) >= 5)


async def held(stage: Stage, incident: Incident) -> None:
    rules = [{"causes": ["DataError"], "action": "Hold"}]
    bad_data = f"exit:rank=0,step=60,code={ExitCode.DATA_ERROR.value}"
    await stage.submit(incident.ill[0], bad_data, recovery={"rules": rules})
    await stage.until_phase(incident.ill[0], JobPhase.HELD)


async def image(stage: Stage, incident: Incident) -> None:
    (job,) = incident.ill
    await asyncio.sleep(20)
    stage.stop_kubelet()
    await stage.submit(job)
    await stage.until(lambda: len(stage.pods(job)) == 2)
    for pod in stage.pods(job):
        stage.pod_waits(pod, "ImagePullBackOff", 'Back-off pulling image "registry.example.com/ocr:v12"')


async def straggler(stage: Stage, incident: Incident) -> None:
    slow = paced(60, [1], 2.5 * PACE_S)
    await stage.submit(incident.ill[0], *slow, pods=3, recovery={"straggler": {"windowSeconds": 20}})
    await stage.until(lambda: (found := stage.status(incident.ill[0]).straggler) is not None and found.told)


async def no_leader(stage: Stage, incident: Incident) -> None:
    await asyncio.sleep(30)
    stage.store.admission = refuse_lease


async def out_of_memory(stage: Stage, incident: Incident) -> None:
    await stage.submit(incident.ill[0], *again("oom", 36, ",where=host"))
    await stage.until(lambda: len(stage.status(incident.ill[0]).recoveries) >= 4)


async def lost_node(stage: Stage, incident: Incident) -> None:
    for job in incident.ill:
        # Its new ranks keep the pace too, from a step that the first ones don't come to.
        await stage.submit(job, *paced(60, range(2)), recovery={"agentLostSeconds": 20})
    for job in incident.ill:
        await stage.until_steps(job, 40)
    for job in incident.ill:
        meta = stage.pods(job)[-1]["metadata"]
        stage.store.patch(POD, meta["namespace"], meta["name"], {"metadata": {"annotations": {LOST: "true"}}})
    for job in incident.ill:
        await stage.until(lambda job=job: stage.status(job).recoveries)
        await stage.until_phase(job, JobPhase.RUNNING)


async def quota(stage: Stage, incident: Incident) -> None:
    (job,) = incident.ill

    def refuse(kind: str, new: Object, old: Object | None) -> None:
        if kind == POD and old is None and new["metadata"]["namespace"] == job.namespace:
            limits = "requested: pods=1, used: pods=40, limited: pods=40"
            raise Forbidden(f'pods "{new["metadata"]["name"]}" is forbidden: exceeded quota: team, {limits}')

    stage.store.admission = refuse
    await stage.submit(job)
    await asyncio.sleep(60)


async def hang(stage: Stage, incident: Incident) -> None:
    recovery = {"hang": {"limitSeconds": 60, "mode": "Notify"}}
    # Both ranks: one that waits for the other would fail when its collective runs out of time.
    await stage.submit(incident.ill[0], *(f"stop:rank={rank},step=60" for rank in range(2)), recovery=recovery)
    await stage.until(lambda: (found := stage.status(incident.ill[0]).suspicion) is not None and found.confirmed)


async def operator_out_of_memory(stage: Stage, incident: Incident) -> None:
    """What takes more than its limit is killed, as by the kernel."""
    killed = 0
    while killed < 4:
        for number, replica in enumerate(stage.replicas):
            if await stage.memory(number) > LIMIT_BYTES - incident.leak_bytes:
                await replica.kill()
                killed += 1
                await asyncio.sleep(3)  # it is scraped again
        await asyncio.sleep(0.5)


async def diverged(stage: Stage, incident: Incident) -> None:
    await stage.submit(incident.ill[0], "nan:rank=0,step=80")
    await stage.until_phase(incident.ill[0], JobPhase.FAILED)


async def slow_files(stage: Stage, incident: Incident) -> None:
    paths = [str(SLOW), base_environment(os.environ).get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SLOW_FILES": "30,12"}
    await stage.submit(incident.ill[0], variables=variables)
    await stage.until_steps(incident.ill[0], 12 * SAVE_EVERY)


def again(kind: str, every: int, more: str = "") -> Iterator[str]:
    """Faults in rank 0 every so many steps. What is started again after one goes on at the same pace."""
    for step in range(every, STEPS, every):
        yield f"{kind}:rank=0,step={step}{more}"
        yield from paced(step + 1, range(2))


def refuse_lease(kind: str, new: Object, old: Object | None) -> None:
    """The API server forbids the operators' lease."""
    if kind == LEASE:
        raise Forbidden('leases.coordination.k8s.io "trainmaster-operator" is forbidden')


STATUS = "trainmaster status {name} -n {namespace}"


def _incident(
    number: int,
    name: str,
    play: Callable[[Stage, Incident], Awaitable[None]],
    ill: tuple[str, ...],
    healthy: tuple[str, ...],
    cause: str,
    command: str = STATUS,
    **more: Any,
) -> Incident:
    """The names of jobs are given as NAMESPACE/NAME."""
    jobs = tuple(Cast(*each.split("/")) for each in ill)
    others = tuple(Cast(*each.split("/")) for each in healthy)
    words = command.format(namespace=jobs[0].namespace, name=jobs[0].name) if jobs else command
    return Incident(number, name, play, jobs, others, cause, words, **more)


INCIDENTS: tuple[Incident, ...] = (
    _incident(
        1,
        "held",
        held,
        ("language/pretrain-b",),
        ("vision/detector", "speech/whisper-eu"),
        "it is held after a DataError and keeps its pods",
        seconds=60.0,
    ),
    _incident(
        2,
        "out of memory",
        out_of_memory,
        ("language/long-context",),
        ("growth/tabular", "vision/vit-large"),
        "a rank runs out of memory again and again",
    ),
    _incident(
        3,
        "no leader",
        no_leader,
        (),
        ("search/ranker", "language/llama-small"),
        "no operator leads: the API server refuses its lease",
        "kubectl get lease trainmaster-operator -n trainmaster-system",
        how=NO_CLUSTER,
        seconds=80.0,
    ),
    _incident(
        4,
        "image",
        image,
        ("documents/ocr",),
        ("vision/gan", "language/summaries"),
        "its image can't be pulled",
        how=NO_CLUSTER,
        seconds=100.0,
    ),
    _incident(
        5,
        "straggler",
        straggler,
        ("vision/segmenter",),
        ("robotics/rl-agent", "speech/tts"),
        "one rank is two and a half times as slow as the others",
        "kubectl get dtj segmenter -n vision -o jsonpath='{{.status.internal.straggler}}'",
    ),
    _incident(
        6,
        "crash loop",
        crash_loop,
        ("robotics/planner",),
        ("language/mixtral", "vision/depth"),
        "its program crashes again and again",
    ),
    _incident(
        7,
        "slow file system",
        slow_files,
        ("vision/diffusion",),
        ("speech/asr", "search/embedder"),
        "storage gets slower: saves take longer and longer",
        seconds=5.0,
    ),
    _incident(
        8,
        "quota",
        quota,
        ("search/reranker",),
        ("language/translator", "growth/churn"),
        "the quota of its namespace has no room for its pods",
        how=NO_CLUSTER,
    ),
    _incident(
        9,
        "operator out of memory",
        operator_out_of_memory,
        (),
        ("vision/pose", "language/chat"),
        "the operator runs out of memory and is started again and again",
        "kubectl describe pods -n trainmaster-system -l app.kubernetes.io/name=trainmaster",
        how="real runs, and the real operator with a leak that the tool puts into it and kills at 1 GiB",
        seconds=25.0,
        leak_bytes=24e6,
    ),
    _incident(
        10,
        "hang",
        hang,
        ("speech/seq2seq",),
        ("vision/tracker", "documents/parser"),
        "a rank hangs: the job makes no step any more",
        seconds=330.0,
    ),
    _incident(
        11,
        "NaN",
        diverged,
        ("language/gpt-medium",),
        ("vision/mae", "growth/uplift"),
        "its loss became NaN, so it failed: Diverged",
        seconds=40.0,
    ),
    _incident(
        12,
        "lost node",
        lost_node,
        ("language/bert-xl", "search/matcher"),
        ("speech/diarizer",),
        "a node was lost, and with it a pod of each",
        "kubectl get nodes",
        how=f"{RUN}, whose kubelet falls silent about a pod of each job, as when their node is lost",
        seconds=40.0,
    ),
)


async def perform(stage: Stage, incident: Incident) -> tuple[float, float]:
    """Seed the incident. Return when it began and ended, in seconds since 1970."""
    for job, (pods, ranks) in zip(incident.healthy, ((1, 2), (2, 1)), strict=False):
        await stage.submit(job, pods=pods, ranks=ranks)
        await stage.until_steps(job)
    began_s = time.time()
    async with asyncio.timeout(LIMIT_S):
        await incident.play(stage, incident)
    await asyncio.sleep(incident.seconds)
    return began_s, await stage.all_seen()
