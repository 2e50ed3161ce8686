"""What happens to ranks, pods, nodes and the job itself. Each tells how often it may be counted at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from simulation.faults.simulated_fault import Fault
from simulation.virtual.virtual_agent import SimAgent
from simulation.virtual.virtual_ranks import SimRank
from simulation.virtual.virtual_world import MOST_PODS, World
from trainmaster.contract.wire import Cause
from trainmaster_operator.cluster.port import JOB, POD, ApiError

Act = Callable[[World, Fault], Awaitable[None]]


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


async def _kill_rank_unled(world: World, fault: Fault) -> None:
    """While nobody leads: agents may restart it by themselves."""
    if world.operator is not None:
        world.operator.crash("before a rank does")
    await _kill_rank(world, fault)


async def _stop_rank(world: World, fault: Fault) -> None:
    """SIGSTOP, and SIGCONT later."""
    if rank := _rank(world, fault):
        world.watch.incident()
        rank.stopped = True
        await asyncio.sleep(fault.seconds)
        rank.stopped = False


async def _kill_pod(world: World, fault: Fault) -> None:
    if agent := _agent(world, fault):
        agent.die(137, "killed")


async def _evict_pod(world: World, fault: Fault) -> None:
    if agent := _agent(world, fault):
        world.watch.incident()
        _try(lambda: world.store.evict(world.namespace, agent.pod))


async def _delete_pod(world: World, fault: Fault) -> None:
    """By a person, with the pod's own grace."""
    if agent := _agent(world, fault):
        world.watch.incident()
        _try(lambda: world.store.delete(POD, world.namespace, agent.pod))


async def _remove_pod(world: World, fault: Fault) -> None:
    """A person deletes the object by force: its processes may live on."""
    if agent := _agent(world, fault):
        world.watch.incident()
        world.removed_pods[agent.identity.pod_uid] = None
        _try(lambda: world.store.delete(POD, world.namespace, agent.pod, grace_s=0))


async def _lose_node(world: World, fault: Fault) -> None:
    """Its kubelet falls silent, which the node controller notices. What runs on it goes on, unheard; or the machine is
    dead, and nobody tells so before it is back."""
    if agent := _agent(world, fault):
        world.kubelet.node_answers(agent, False)
        if fault.number % 2:
            agent.die(137, "its node is dead")
        await asyncio.sleep(fault.seconds)
        world.kubelet.node_answers(agent, True)


async def _reclaim_node(world: World, fault: Fault) -> None:
    """The cloud takes it back, without a word; where nodes are only names, its pod is killed."""
    if agent := _agent(world, fault):
        if world.cluster is not None:
            world.cluster.reclaim(agent.node)
        else:
            agent.die(137, "its node is gone")


async def _lose_store(world: World, fault: Fault) -> None:
    for agent in world.kubelet.living():
        agent.lose_store()


async def _cut_agent_off(world: World, fault: Fault) -> None:
    """A partition: the agent and its ranks go on, and nobody hears them."""
    if agent := _agent(world, fault):
        await _cut_off(world, [agent], fault.seconds)


async def _cut_all_off(world: World, fault: Fault) -> None:
    await _cut_off(world, world.kubelet.living(), fault.seconds)


async def _cut_off(world: World, agents: list[SimAgent], seconds: float) -> None:
    for agent in agents:
        agent.cut_off = True
    await asyncio.sleep(seconds)
    for agent in agents:
        agent.cut_off = False


async def _touch_job(world: World, fault: Fault) -> None:
    """Somebody else keeps writing to the job: conflicts."""
    for i in range(20):
        world.edit_job({"metadata": {"annotations": {"touched": str(i)}}})
        await asyncio.sleep(fault.seconds / 20)


async def _suspend(world: World, fault: Fault) -> None:
    world.edit_job({"spec": {"suspend": True}})
    await asyncio.sleep(fault.seconds)
    world.edit_job({"spec": {"suspend": False}})


async def _resize(world: World, fault: Fault) -> None:
    """To another size, and back later; where the job isn't elastic, nothing."""
    if not world.workload.elastic:
        return
    for replicas in (1 + fault.number % MOST_PODS, world.workload.replicas):
        world.edit_job({"spec": {"workers": {"replicas": replicas}}})
        await asyncio.sleep(fault.seconds)


async def _recreate_job(world: World, fault: Fault) -> None:
    """Deleted, and created anew under the same name, at once or while its pods still end."""
    if world.job() is None:
        return
    world.comes_back += 1
    world.store.delete(JOB, world.namespace, world.name)
    await asyncio.sleep(fault.seconds / 10)
    world.comes_back -= 1
    if world.job() is None:
        world.create_job()


def _try(write: Callable[[], object]) -> None:
    try:
        write()
    except ApiError:
        return


KINDS: dict[str, Act] = {
    "kill-rank": _kill_rank,
    "exit-rank": _exit_rank,
    "kill-rank-unled": _kill_rank_unled,
    "stop-rank": _stop_rank,
    "kill-pod": _kill_pod,
    "evict-pod": _evict_pod,
    "delete-pod": _delete_pod,
    "remove-pod": _remove_pod,
    "lose-node": _lose_node,
    "reclaim-node": _reclaim_node,
    "lose-store": _lose_store,
    "cut-agent-off": _cut_agent_off,
    "cut-all-off": _cut_all_off,
    "touch-job": _touch_job,
    "suspend": _suspend,
    "resize": _resize,
    "recreate-job": _recreate_job,
}
