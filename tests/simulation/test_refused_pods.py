"""An API server that takes no pods for a while: the job waits, tells why, lets go if it must, and ends as ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trainmaster_operator.cluster.port import POD, Forbidden
from trainmaster_operator.runtime.simulation.crashes import Scenario, crash_matrix
from trainmaster_operator.runtime.simulation.run import Outcome, simulate
from trainmaster_operator.runtime.simulation.world import Workload, World


def told(outcome: Outcome) -> str:
    return "\n".join([*outcome.log, *outcome.violations])


def refuse(kind: str, new: Any, old: Any) -> None:
    if kind == POD and old is None:
        raise Forbidden(f'pods "{new["metadata"]["name"]}" is forbidden: exceeded quota')


async def replaced_while_the_quota_is_full(world: World, seconds: float) -> None:
    await world.until_step(5)
    world.store.admission = refuse
    next(agent for agent in world.kubelet.living() if agent.identity.slot == 1).die(137, "killed")
    await asyncio.sleep(seconds)
    world.store.admission = None


def scheduled(world: World) -> dict[str, Any]:
    found = [c for c in world.status().get("conditions") or [] if c["type"] == "Scheduled"]
    return found[0] if found else {}


def test_the_operator_dies_at_any_write_while_pods_are_refused() -> None:
    async def script(world: World) -> None:
        await replaced_while_the_quota_is_full(world, 12.0)

    runs = 0
    for name, outcome in crash_matrix(Scenario("refused for a while", script)):
        runs += 1
        assert not outcome.violations, "\n".join([name, told(outcome)])
    assert runs > 2 * 8


@pytest.mark.parametrize("script", [False, True], ids=["trained", "script"])
def test_survivors_let_go_while_there_is_no_place_and_the_job_goes_on_later(script: bool) -> None:
    seen: dict[str, Any] = {}

    async def scenario(world: World) -> None:
        world.edit_job({"spec": {"scheduling": {"releaseSeconds": 5}}})
        waiting = asyncio.ensure_future(replaced_while_the_quota_is_full(world, 90.0))
        while not world.status().get("released"):
            await asyncio.sleep(1.0)
        seen["condition"] = scheduled(world)
        while world.kubelet.living():
            await asyncio.sleep(1.0)
        seen["restarts"] = world.status()["restarts"]["total"]
        await waiting

    outcome = simulate("let go", Workload(replicas=3, steps=20, script=script), scenario)
    assert not outcome.violations, told(outcome)
    assert (seen["condition"]["status"], seen["condition"]["reason"]) == ("False", "Refused")
    assert seen["restarts"] == outcome.status["restarts"]["total"] == 1
    assert "released" not in outcome.status
