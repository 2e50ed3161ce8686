"""A cluster whose quota of pods is full while one of them has to be replaced."""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.schedule_runs.scenario import Scenario
from simulation.virtual.virtual_world import World
from trainmaster_operator.cluster.port import POD, Forbidden


def refuse(kind: str, new: Any, old: Any) -> None:
    """The store's admission: no new pod is taken."""
    if kind == POD and old is None:
        raise Forbidden(f'pods "{new["metadata"]["name"]}" is forbidden: exceeded quota')


async def replace_a_pod(world: World, seconds: float) -> None:
    """End the pod of slot 1 while the quota is full, and free the quota after `seconds`."""
    await world.until_step(5)
    world.store.admission = refuse
    next(agent for agent in world.kubelet.living() if agent.identity.slot == 1).die(137, "killed")
    await asyncio.sleep(seconds)
    world.store.admission = None


async def _for_a_while(world: World) -> None:
    await replace_a_pod(world, 12.0)


REFUSED_FOR_A_WHILE = Scenario("refused for a while", _for_a_while)
