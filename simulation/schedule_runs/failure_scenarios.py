"""Scenarios of the crash matrix in which something fails: other causes, other moments and other shapes of the job."""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.faults.dead_webhook import DeadWebhook
from simulation.schedule_runs.scenario import (
    DRAINED,
    SCRIPT,
    Scenario,
    kill_a_pod,
    kill_a_rank,
    of_slot,
    refuse,
    suspended,
    until,
)
from simulation.virtual.virtual_world import World
from trainmaster.contract.wire import Cause
from trainmaster_operator.cluster.port import POD


async def _run_out_of_memory(world: World) -> None:
    await world.until_step(5)
    of_slot(world, 1).ranks[0].exit(-9, "out of memory", Cause.OUT_OF_MEMORY)


async def _break_the_hardware(world: World) -> None:
    await world.until_step(5)
    of_slot(world, 1).ranks[0].exit(1, "Xid 79", Cause.HARDWARE_FAULT)


async def _misconfigure(world: World) -> None:
    await world.until_step(2)
    of_slot(world, 1).ranks[0].exit(2, "no such model", Cause.CONFIG_ERROR)


async def _kill_a_rank_unled(world: World) -> None:
    """While nobody leads: agents restart it by themselves."""
    await world.until_step(5)
    if world.operator is not None:
        world.operator.crash("before a rank does")
    of_slot(world, 1).ranks[0].exit(-9, "killed by signal 9")


async def _kill_rank_0(world: World) -> None:
    await world.until_step(5)
    of_slot(world, 0).ranks[0].exit(-9, "killed by signal 9")


async def _kill_the_pod_of_rank_0(world: World) -> None:
    await world.until_step(5)
    of_slot(world, 0).die(137, "killed")


async def _kill_all_pods(world: World) -> None:
    await world.until_step(5)
    for agent in world.kubelet.living():
        agent.die(137, "killed")


async def _die_at_the_start(world: World) -> None:
    """Before ranks have met."""
    await until(lambda: any(agent.ranks for agent in world.kubelet.living()))
    next(rank for agent in world.kubelet.living() for rank in agent.ranks).exit(1, "exit code 1")


async def _fail_thrice(world: World) -> None:
    for step in (3, 5, 7):
        await world.until_step(step)
        rank = of_slot(world, step % 2).ranks[0]
        rank.exit(-9, "killed by signal 9")
        await until(lambda at=rank.round: world.newest_round > at)  # type: ignore[misc]


async def _kill_a_pod_then_its_peer(world: World) -> None:
    """While the first one's successor starts."""
    await kill_a_pod(world)
    await until(lambda: world.status().phase == "Recovering")
    of_slot(world, 0).die(137, "killed")


async def _lose_a_spare(world: World) -> None:
    await world.until_step(5)
    world.watch.incident()
    of_slot(world, 2).die(137, "killed")


async def _remove_a_pod(world: World) -> None:
    """By force: its processes live on for a while."""
    await world.until_step(5)
    world.watch.incident()
    agent = of_slot(world, 1)
    world.removed_pods[agent.identity.pod_uid] = None
    world.store.delete(POD, world.namespace, agent.pod, grace_s=0)


async def _cut_an_agent_off(world: World) -> None:
    await world.until_step(5)
    agent = of_slot(world, 1)
    agent.cut_off = True
    await asyncio.sleep(40.0)
    agent.cut_off = False


async def _evict_in_mid_recovery(world: World) -> None:
    await kill_a_rank(world)
    world.watch.incident()
    world.store.evict(world.namespace, of_slot(world, 0).pod)


async def _stop_for_a_moment(world: World) -> None:
    """Shorter than any limit: no hang."""
    await world.until_step(5)
    rank = of_slot(world, 1).ranks[0]
    rank.stopped = True
    await asyncio.sleep(2.0)
    rank.stopped = False


async def _hold(world: World) -> None:
    """A rule holds the job; a person suspends and resumes it."""
    world.edit_job({"spec": {"recovery": {"rules": [{"name": "look", "action": "Hold"}]}}})
    await kill_a_rank(world)
    await until(lambda: world.status().phase == "Held")
    await suspended(world)


async def _fail_by_rule(world: World) -> None:
    world.edit_job({"spec": {"recovery": {"rules": [{"name": "no more", "action": "Fail"}]}}})
    await kill_a_rank(world)


async def _replace_by_rule(world: World) -> None:
    world.edit_job({"spec": {"recovery": {"rules": [{"name": "elsewhere", "action": "ReplacePod"}]}}})
    await kill_a_rank(world)


async def _restart_all_by_rule(world: World) -> None:
    world.edit_job({"spec": {"recovery": {"rules": [{"name": "afresh", "action": "RestartAll"}]}}})
    await kill_a_rank(world)


async def _miss_the_deadline(world: World) -> None:
    world.edit_job({"spec": {"activeDeadlineSeconds": 3}})


async def _refuse_the_first_pods(world: World) -> None:
    world.store.admission = refuse
    await asyncio.sleep(8.0)
    world.store.admission = None


async def _lose_a_webhook(world: World) -> None:
    """It is down when a pod has to be replaced."""
    await world.until_step(5)
    world.store.admission = DeadWebhook(world, pods_only=False)
    of_slot(world, 1).die(137, "killed")
    await asyncio.sleep(12.0)
    world.store.admission = None


async def _replace_the_operator_at_the_start(world: World) -> None:
    await until(lambda: bool(world.pods()))
    process = world.operator
    if process is not None:
        await process.stop()
        world.operator_died(process)


FEW_PODS: dict[str, Any] = {"inPlace": 0, "pod": 0, "full": 0, "perCause": 5}
ONE_EACH: dict[str, Any] = {"inPlace": 1, "pod": 1, "full": 5, "perCause": 5}
THREE: dict[str, Any] = {"replicas": 3}
FOUR: dict[str, Any] = {"replicas": 4}
TWO_RANKS: dict[str, Any] = {"ranks_per_pod": 2}
SPARE: dict[str, Any] = {"spares": 1}
LATE: dict[str, Any] = {"restart_s": (1.0, 1.5)}  # the next operator

FAILURES = (
    Scenario("start and finish of a script", _stop_for_a_moment, shape=SCRIPT),
    Scenario("start with a spare", _stop_for_a_moment, shape=SPARE),
    Scenario("in-place restart of two ranks each", kill_a_rank, shape=TWO_RANKS),
    Scenario("in-place restart of four", kill_a_rank, shape=FOUR),
    Scenario("in-place restart beside a spare", kill_a_rank, shape=SPARE),
    Scenario("restart by the grant", _kill_a_rank_unled, shape=LATE, exact=False),
    Scenario("restart of a script by the grant", _kill_a_rank_unled, shape={**SCRIPT, **LATE}, exact=False),
    Scenario("restart by the grant beside a spare", _kill_a_rank_unled, shape={**SPARE, **LATE}, exact=False),
    Scenario("rank 0 lost", _kill_rank_0),
    Scenario("rank 0 of a script lost", _kill_rank_0, shape=SCRIPT),
    Scenario("out of memory", _run_out_of_memory),
    Scenario("hardware fault", _break_the_hardware),
    Scenario("hardware fault with a spare", _break_the_hardware, shape=SPARE),
    Scenario("wrong configuration", _misconfigure, phase="Failed", ends_with="no such model"),
    Scenario("pod of rank 0 lost", _kill_the_pod_of_rank_0),
    Scenario("pod of rank 0 of a script lost", _kill_the_pod_of_rank_0, shape=SCRIPT),
    Scenario("pod of rank 0 replaced by a spare", _kill_the_pod_of_rank_0, shape=SPARE),
    Scenario("all pods lost", _kill_all_pods, exact=False),
    Scenario("death at the start", _die_at_the_start, exact=False),
    Scenario("three failures", _fail_thrice, steps=12),
    Scenario("two rungs spent", _fail_thrice, steps=12, budget=ONE_EACH),
    Scenario("a pod, then its peer", _kill_a_pod_then_its_peer, exact=False),
    Scenario("lost spare", _lose_a_spare, steps=30, shape=SPARE),
    Scenario("removed pod", _remove_a_pod),
    Scenario("silent agent", _cut_an_agent_off),
    Scenario("silent agent with a spare", _cut_an_agent_off, shape=SPARE),
    Scenario("eviction in mid-recovery", _evict_in_mid_recovery, steps=20, exact=False),
    Scenario("eviction of three with a spare", _evict_in_mid_recovery, steps=20, shape={**THREE, **SPARE}, exact=False),
    Scenario("stopped for a moment", _stop_for_a_moment),
    Scenario("held", _hold, steps=20),
    Scenario("failed by rule", _fail_by_rule, phase="Failed", ends_with="no more"),
    Scenario("replaced by rule", _replace_by_rule),
    Scenario("all restarted by rule", _restart_all_by_rule),
    Scenario("deadline missed", _miss_the_deadline, phase="Failed", steps=30, ends_with="activeDeadlineSeconds"),
    Scenario("first pods refused", _refuse_the_first_pods),
    Scenario("webhook down", _lose_a_webhook),
    Scenario("operator replaced at the start", _replace_the_operator_at_the_start),
    Scenario("budget of pods spent", kill_a_pod, phase="Failed", budget=FEW_PODS, alike=DRAINED),
)
