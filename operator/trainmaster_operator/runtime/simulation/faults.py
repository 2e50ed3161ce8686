"""What can go wrong, and schedules of it by seed. Every fault ends by itself: a job can always get through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from trainmaster.contract.wire import Cause
from trainmaster_operator.cluster.faulty import CrashPoint, Rates
from trainmaster_operator.cluster.port import LEASE, POD, NotFound
from trainmaster_operator.runtime.simulation.agent import SimAgent
from trainmaster_operator.runtime.simulation.training import SimRank
from trainmaster_operator.runtime.simulation.world import World


@dataclass(frozen=True)
class Fault:
    """`step`: injected when the job first reaches it, `delay_s` later. `number` picks a victim or a variant."""

    kind: str
    step: int
    delay_s: float
    seconds: float
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.delay_s:.2f} s after step {self.step} (for {self.seconds:.2f} s, {self.number})"


async def inject(world: World, fault: Fault) -> None:
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
            delay_s=chance.choice((0.0, 0.01, 0.1, 1.0)) * chance.random(),
            seconds=chance.choice((0.2, 2.0, 25.0)) * chance.uniform(0.5, 1.0),
            number=chance.randrange(1000),
        )
        for _ in range(chance.randint(1, 6))
    ]


def _agent(world: World, fault: Fault) -> SimAgent | None:
    living = world.kubelet.living()
    return living[fault.number % len(living)] if living else None


def _rank(world: World, fault: Fault) -> SimRank | None:
    ranks = [rank for agent in world.kubelet.living() for rank in agent.ranks if rank.alive]
    return ranks[fault.number % len(ranks)] if ranks else None


async def _kill_rank(world: World, fault: Fault) -> None:
    if rank := _rank(world, fault):
        rank.exit(-9, "killed by signal 9")


async def _exit_rank(world: World, fault: Fault) -> None:
    if rank := _rank(world, fault):
        rank.exit(3, "exit code 3", Cause.CRASH)


async def _stop_rank(world: World, fault: Fault) -> None:
    """SIGSTOP, and SIGCONT later."""
    if rank := _rank(world, fault):
        rank.stopped = True
        await asyncio.sleep(fault.seconds)
        rank.stopped = False


async def _kill_pod(world: World, fault: Fault) -> None:
    if agent := _agent(world, fault):
        agent.die(137, "killed")


async def _evict_pod(world: World, fault: Fault) -> None:
    if agent := _agent(world, fault):
        _try(lambda: world.store.evict(world.namespace, agent.pod))


async def _remove_pod(world: World, fault: Fault) -> None:
    """A person deletes the object by force: its processes may live on."""
    if agent := _agent(world, fault):
        world.removed_pods = True
        _try(lambda: world.store.delete(POD, world.namespace, agent.pod, grace_s=0))


async def _lose_store(world: World, fault: Fault) -> None:
    for agent in world.kubelet.living():
        agent.lose_store()


async def _cut_agent_off(world: World, fault: Fault) -> None:
    """A partition: the agent and its ranks go on, and nobody hears them."""
    if agent := _agent(world, fault):
        agent.cut_off = True
        await asyncio.sleep(fault.seconds)
        agent.cut_off = False


async def _cut_all_off(world: World, fault: Fault) -> None:
    for agent in world.kubelet.living():
        agent.cut_off = True
    await asyncio.sleep(fault.seconds)
    for agent in world.kubelet.agents.values():
        agent.cut_off = False


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
    """A second operator takes the lease while the first one still runs, and doesn't know it yet."""
    if world.operator is not None:
        world.start_operator(takeover=True)


async def _stop_operator(world: World, fault: Fault) -> None:
    process = world.operator
    if process is not None:
        await process.stop()
        world.operator_died(process)


async def _api_outage(world: World, fault: Fault) -> None:
    world.outage_until = world.clock.monotonic() + fault.seconds
    if world.operator is not None:
        await world.operator.cluster.outage(fault.seconds)


async def _flaky_api(world: World, fault: Fault) -> None:
    share = 0.1 + 0.2 * (fault.number % 2)
    world.set_weather(Rates(fail=share, lose=share, conflict=share))
    await asyncio.sleep(fault.seconds)
    world.set_weather(Rates())


async def _late_writes(world: World, fault: Fault) -> None:
    world.set_weather(Rates(late=0.3))
    await asyncio.sleep(fault.seconds)
    world.set_weather(Rates())


async def _bad_watches(world: World, fault: Fault) -> None:
    world.set_weather(Rates(duplicate=0.2, disconnect=0.1, end=0.1, expire=0.1))
    await asyncio.sleep(fault.seconds)
    world.set_weather(Rates())


async def _slow_api(world: World, fault: Fault) -> None:
    before = world.latency_s
    world.set_weather(latency_s=(0.05, 0.6))
    await asyncio.sleep(fault.seconds)
    world.set_weather(latency_s=before)


async def _break_watches(world: World, fault: Fault) -> None:
    """While nobody watches, the history is forgotten."""
    if world.operator is not None:
        world.operator.cluster.disconnect()
    await asyncio.sleep(0)
    world.store.compact()


async def _lose_lease(world: World, fault: Fault) -> None:
    """The Lease is deleted, so that the next leader counts its epochs from 1."""
    _try(lambda: world.store.delete(LEASE, "default", "trainmaster-operator"))


async def _touch_job(world: World, fault: Fault) -> None:
    """Somebody else keeps writing to the job: conflicts."""
    for i in range(20):
        if world.job() is not None:
            world.edit_job({"metadata": {"annotations": {"touched": str(i)}}})
        await asyncio.sleep(fault.seconds / 20)


async def _suspend(world: World, fault: Fault) -> None:
    world.edit_job({"spec": {"suspend": True}})
    await asyncio.sleep(fault.seconds)
    world.edit_job({"spec": {"suspend": False}})


def _try(write: Callable[[], object]) -> None:
    try:
        write()
    except NotFound:
        return


KINDS: dict[str, Callable[[World, Fault], Awaitable[None]]] = {
    "kill-rank": _kill_rank,
    "exit-rank": _exit_rank,
    "stop-rank": _stop_rank,
    "kill-pod": _kill_pod,
    "evict-pod": _evict_pod,
    "remove-pod": _remove_pod,
    "lose-store": _lose_store,
    "cut-agent-off": _cut_agent_off,
    "cut-all-off": _cut_all_off,
    "crash-operator": _crash_operator,
    "crash-at-write": _crash_at_write,
    "rival-operator": _rival_operator,
    "stop-operator": _stop_operator,
    "api-outage": _api_outage,
    "flaky-api": _flaky_api,
    "late-writes": _late_writes,
    "bad-watches": _bad_watches,
    "slow-api": _slow_api,
    "break-watches": _break_watches,
    "lose-lease": _lose_lease,
    "touch-job": _touch_job,
    "suspend": _suspend,
}
