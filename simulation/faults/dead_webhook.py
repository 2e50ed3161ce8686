"""An admission webhook that is down: the API server answers creates with 500 for a while.

It is promised that the job says so while it lasts, and that what was refused is created soon after it is over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from simulation.faults.simulated_fault import Fault
from simulation.faults.workload_faults import Act
from simulation.virtual.cluster_faults import Rates
from simulation.virtual.operator_process import OperatorProcess
from simulation.virtual.virtual_world import LATENCY_S, World
from trainmaster_operator.cluster.port import POD, REVISION, SERVICE, Object, Unavailable

WORDS = 'Internal error occurred: failed calling webhook "policy.example.com": connection refused'
TOLD_WITHIN_S = 15.0  # by an operator whom nothing else disturbs
CREATED_WITHIN_S = 15.0
TRIED_EACH_S = 8.0  # at least, while something is wanted
LOOK_S = 0.5


class DeadWebhook:
    """The store's admission while the webhook is down. `pods_only`: it is not asked about other kinds."""

    def __init__(self, world: World, pods_only: bool) -> None:
        self._kinds = (POD,) if pods_only else (POD, SERVICE, REVISION)
        self._world = world
        self.refused: tuple[str, str] = ("", "")  # kind and name of what was refused last
        self.refused_at = float("-inf")

    def __call__(self, kind: str, new: Object, old: Object | None) -> None:
        if kind not in self._kinds or old is not None:
            return
        self.refused = kind, new["metadata"]["name"]
        self.refused_at = self._world.clock.elapsed
        error = Unavailable(WORDS)
        error.said = "InternalError"
        raise error


@dataclass(frozen=True)
class _Scene:
    """While this stays the same, the operator has nothing else to do than to create what is missing."""

    operator: OperatorProcess | None
    job: tuple[object, ...]  # uid, generation, phase, incarnations


async def fail(world: World, fault: Fault) -> None:
    """Let the webhook be down for the seconds of the fault, and see that both promises are kept."""
    webhook = DeadWebhook(world, pods_only=fault.number % 2 == 0)
    world.store.admission = webhook
    over_at = world.clock.elapsed + fault.seconds
    scene, since = _scene(world), world.clock.elapsed
    while (now := world.clock.elapsed) < over_at and world.store.admission is webhook:
        if now - webhook.refused_at > TRIED_EACH_S or (found := _scene(world)) != scene:
            scene, since = _scene(world), now
        elif found is not None and now - since > TOLD_WITHIN_S and not _is_told(world):
            world.violation(
                f"{webhook.refused[0]}s have been refused for {TOLD_WITHIN_S:g} s, and no condition says so"
            )
        await asyncio.sleep(min(LOOK_S, over_at - now))
    if world.store.admission is not webhook:
        return  # a quota is full, or another webhook is down
    world.store.admission = None
    if webhook.refused_at > over_at - TRIED_EACH_S:
        await _see_it_created(world, *webhook.refused)


async def _see_it_created(world: World, kind: str, name: str) -> None:
    scene, until = _scene(world), world.clock.elapsed + CREATED_WITHIN_S
    while scene is not None and scene == _scene(world) and world.store.admission is None:
        if any(obj["metadata"]["name"] == name for obj in world.store.list(kind, world.namespace).items):
            return
        if world.clock.elapsed >= until:
            world.violation(
                f"{kind} {name} is not created {CREATED_WITHIN_S:g} s after it was refused for the last time"
            )
            return
        await asyncio.sleep(LOOK_S)


def _scene(world: World) -> _Scene | None:
    """None: something else is wrong, too."""
    job, process = world.job(), world.operator
    if job is None or process is None or not process.leads or process.cluster.frozen_s > 0:
        return None
    if world.rates != Rates() or world.latency_s != LATENCY_S or world.clock.elapsed < world.outage_until:
        return None
    meta, status = job["metadata"], world.status()
    if status.phase.finished or meta.get("deletionTimestamp") or job["spec"].get("suspend"):
        return None
    return _Scene(process, (meta["uid"], meta["generation"], status.phase, status.incarnations, status.revision))


def _is_told(world: World) -> bool:
    """In a condition of the job."""
    conditions = world.status().conditions
    return any(WORDS in c.message and c.status == {"Scheduled": "False"}.get(c.type, "True") for c in conditions)


KINDS: dict[str, Act] = {"dead-webhook": fail}
