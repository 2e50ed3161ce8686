"""All that can go wrong, and lists of it by chance. Every fault ends by itself: a job can always get through."""

from __future__ import annotations

import asyncio
import random

from trainmaster_operator.runtime.simulation import mishaps, weather
from trainmaster_operator.runtime.simulation.fault import Fault
from trainmaster_operator.runtime.simulation.world import World

KINDS = {**mishaps.KINDS, **weather.KINDS}

MOST = 6


async def inject(world: World, fault: Fault) -> None:
    if fault.event:
        await world.until_event(fault.event)
    else:
        await world.until_step(fault.step)
        await asyncio.sleep(fault.delay_s)
    if not world.finished.is_set():
        world.note(f"FAULT {fault}")
        await KINDS[fault.kind](world, fault)


def schedule(chance: random.Random, steps: int) -> list[Fault]:
    """One to six faults."""
    kinds = sorted(KINDS)
    return [
        Fault(
            kind=chance.choice(kinds),
            step=chance.randrange(steps),
            delay_s=round(chance.choice((0.0, 0.01, 0.1, 1.0)) * chance.random(), 6),
            seconds=round(chance.choice((0.2, 2.0, 25.0)) * chance.uniform(0.5, 1.0), 6),
            number=chance.randrange(1000),
        )
        for _ in range(chance.randint(1, MOST))
    ]


__all__ = ["KINDS", "Fault", "inject", "schedule"]
