"""All that can go wrong, and lists of it by chance. Every fault ends by itself: a job can always get through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from simulation.faults import control_plane_faults, dead_webhook, user_changes, workload_faults
from simulation.faults.simulated_fault import Fault
from simulation.virtual.virtual_world import World

_TROUBLES = {**workload_faults.KINDS, **control_plane_faults.KINDS}
KINDS = {**_TROUBLES, **user_changes.KINDS, **dead_webhook.KINDS}

ON_A_GROWING_CLUSTER = (
    *("kill-rank", "kill-pod", "evict-pod", "delete-pod", "lose-node", "cut-agent-off", "reclaim-node"),
    *("crash-operator", "crash-at-write", "rival-operator", "stop-operator", "api-outage", "flaky-api", "deaf-watches"),
)
MOST = 6
DEAD_WEBHOOK_SHARE = 0.25  # of schedules
START_S = 0.03  # from the creation of a job to that of its last pod


async def inject(world: World, fault: Fault) -> None:
    if fault.event:
        await world.until_event(fault.event)
    else:
        await world.until_step(fault.step)
        await asyncio.sleep(fault.delay_s)
    if not world.finished.is_set():
        world.note(f"FAULT {fault}")
        await KINDS[fault.kind](world, fault)


def schedule(chance: random.Random, steps: int, of: Sequence[str] = ()) -> list[Fault]:
    """One to six faults, of these kinds; by default of all that can happen on any cluster."""
    kinds = sorted(of or _TROUBLES.keys() - {"reclaim-node"})
    return [_fault(chance, kinds, steps) for _ in range(chance.randint(1, MOST))]


def edits(chance: random.Random, steps: int) -> list[Fault]:
    """What people change meanwhile: in half of the schedules nothing, else one or two things."""
    kinds = sorted(user_changes.KINDS)
    return [_fault(chance, kinds, steps) for _ in range(chance.choice((0, 0, 1, 2)))]


def refusals(chance: random.Random, steps: int) -> list[Fault]:
    """In some schedules one: mostly at the start, when pods are wanted, else at any step."""
    if chance.random() >= DEAD_WEBHOOK_SHARE:
        return []
    step = chance.choice((0, 0, chance.randrange(steps)))
    seconds = round(chance.choice((2.0, 25.0, 25.0)) * chance.uniform(0.6, 1.0), 6)
    delay_s = (0.1 if step else START_S) * chance.random()
    return [Fault("dead-webhook", step, round(delay_s, 6), seconds, chance.randrange(1000))]


def _fault(chance: random.Random, kinds: list[str], steps: int) -> Fault:
    return Fault(
        kind=chance.choice(kinds),
        step=chance.randrange(steps),
        delay_s=round(chance.choice((0.0, 0.01, 0.1, 1.0)) * chance.random(), 6),
        seconds=round(chance.choice((0.2, 2.0, 25.0)) * chance.uniform(0.5, 1.0), 6),
        number=chance.randrange(1000),
    )


__all__ = ["KINDS", "Fault", "edits", "inject", "refusals", "schedule"]
