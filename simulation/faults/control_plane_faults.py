"""What happens to the operator and between it and its API server. None of it may ever be counted as a failure."""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.faults.simulated_fault import Fault
from simulation.faults.workload_faults import Act
from simulation.virtual.cluster_faults import CrashPoint, Rates
from simulation.virtual.virtual_world import LATENCY_S, World
from trainmaster_operator.cluster.port import LEASE, POD, Forbidden, NotFound, Object


async def _crash_operator(world: World, fault: Fault) -> None:
    if world.operator is not None:
        world.operator.crash("at random")


async def _crash_at_write(world: World, fault: Fault) -> None:
    """At one of its next writes, before or after it takes effect; its successor too."""
    for _ in range(2):
        while world.operator is None:
            await asyncio.sleep(0.1)
        cluster = world.operator.cluster
        cluster.crash = CrashPoint(
            cluster.writes + 1 + fault.number // 2 % 5, "before" if fault.number % 2 else "after"
        )
        while world.operator is not None and world.operator.cluster is cluster:
            await asyncio.sleep(0.1)


async def _rival_operator(world: World, fault: Fault) -> None:
    """A second operator takes the lease while the first one still leads, and doesn't know it yet. Were the first one
    still waiting for the lease, it would take it back, though agents speak with the second."""
    while world.operator is None or not world.operator.leads:
        await asyncio.sleep(0.1)
    world.start_operator(takeover=True)


async def _stop_operator(world: World, fault: Fault) -> None:
    process = world.operator
    if process is not None:
        await process.stop()
        world.operator_died(process)


async def _pause_operator(world: World, fault: Fault) -> None:
    """What it has sent and what it is told stays under way, perhaps until its lease is another's."""
    if world.operator is not None:
        world.operator.cluster.freeze(fault.seconds)
        if fault.number % 2:
            await asyncio.sleep(fault.seconds / 2)
            world.start_operator(takeover=True)


async def _clock_jump(world: World, fault: Fault) -> None:
    """An operator's wall clock is set, forth or back, and set right later. Time that the status tells may be wrong
    then, and what is judged by it: a restart too many for each jump."""
    world.watch.incident(2)
    jump_s = fault.seconds * (4 if fault.number % 2 else -4)
    world.skew_s += jump_s
    await asyncio.sleep(fault.seconds)
    world.skew_s -= jump_s


async def _api_outage(world: World, fault: Fault) -> None:
    world.outage_until = max(world.outage_until, world.clock.monotonic() + fault.seconds)
    if world.operator is not None:
        await world.operator.cluster.outage(fault.seconds)


async def _flaky_api(world: World, fault: Fault) -> None:
    share = 0.1 + 0.2 * (fault.number % 2)
    await _weather(world, fault, fail=share, lose=share, conflict=share)


async def _throttled_api(world: World, fault: Fault) -> None:
    await _weather(world, fault, throttle=0.5)


async def _late_writes(world: World, fault: Fault) -> None:
    await _weather(world, fault, late=0.3)


async def _bad_watches(world: World, fault: Fault) -> None:
    await _weather(world, fault, duplicate=0.2, disconnect=0.1, end=0.1, expire=0.1)


async def _stale_lists(world: World, fault: Fault) -> None:
    """Watches break often, and lists lag behind what was seen before."""
    await _weather(world, fault, expire=0.3, stale=0.7)


async def _slow_watches(world: World, fault: Fault) -> None:
    """Events come late, and those of several objects in another order."""
    await _weather(world, fault, delay=0.3, reorder=0.3)


async def _deaf_watches(world: World, fault: Fault) -> None:
    """Events are lost, until lists tell all at once."""
    await _weather(world, fault, drop=0.3)
    await _break_watches(world, fault)


async def _weather(world: World, fault: Fault, **rates: float) -> None:
    world.set_weather(Rates(**rates))
    await asyncio.sleep(fault.seconds)
    world.set_weather(Rates())


async def _slow_api(world: World, fault: Fault) -> None:
    world.set_weather(latency_s=(0.05, 0.6))
    await asyncio.sleep(fault.seconds)
    world.set_weather(latency_s=LATENCY_S)


async def _break_watches(world: World, fault: Fault) -> None:
    """While nobody watches, the history is forgotten."""
    for process in world.processes:
        process.cluster.disconnect()
    await asyncio.sleep(0)
    world.store.compact()


async def _lose_lease(world: World, fault: Fault) -> None:
    """The Lease is deleted, so that the next leader counts its epochs from 1."""
    try:
        world.store.delete(LEASE, "default", "trainmaster-operator")
    except NotFound:
        return


async def _refuse_pods(world: World, fault: Fault) -> None:
    """A quota is full: pods are forbidden for a while."""

    def refuse(kind: str, new: Object, old: Any) -> None:
        if kind == POD and old is None:
            raise Forbidden(f'pods "{new["metadata"]["name"]}" is forbidden: exceeded quota')

    world.store.admission = refuse
    await asyncio.sleep(fault.seconds)
    if world.store.admission is refuse:
        world.store.admission = None


KINDS: dict[str, Act] = {
    "crash-operator": _crash_operator,
    "crash-at-write": _crash_at_write,
    "rival-operator": _rival_operator,
    "stop-operator": _stop_operator,
    "pause-operator": _pause_operator,
    "clock-jump": _clock_jump,
    "api-outage": _api_outage,
    "flaky-api": _flaky_api,
    "throttled-api": _throttled_api,
    "late-writes": _late_writes,
    "bad-watches": _bad_watches,
    "stale-lists": _stale_lists,
    "slow-watches": _slow_watches,
    "deaf-watches": _deaf_watches,
    "slow-api": _slow_api,
    "break-watches": _break_watches,
    "lose-lease": _lose_lease,
    "refuse-pods": _refuse_pods,
}
