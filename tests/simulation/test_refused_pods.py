"""An API server that takes no pods for a while: the job waits, tells why, lets go if it must, and ends as ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simulation.schedule_runs.simulated_run import simulate
from simulation.virtual.virtual_world import Workload, World
from tests.simulation.full_quota import REFUSED_FOR_A_WHILE, replace_a_pod
from tests.simulation.matrix import Matrices
from tests.simulation.told import told
from trainmaster_operator.planning.facts.job_state import Condition


def scheduled(world: World) -> Condition:
    (found,) = [c for c in world.status().conditions if c.type == "Scheduled"]
    return found


def test_the_operator_dies_at_any_write_while_pods_are_refused(matrices: Matrices) -> None:
    matrix = matrices.of(REFUSED_FOR_A_WHILE)
    for name, outcome in matrix:
        assert not outcome.violations, "\n".join([name, told(outcome)])
    assert len(matrix) > 2 * 8


@pytest.mark.parametrize("script", [False, True], ids=["trained", "script"])
def test_survivors_let_go_while_there_is_no_place_and_the_job_goes_on_later(script: bool) -> None:
    seen: dict[str, Any] = {}

    async def scenario(world: World) -> None:
        world.edit_job({"spec": {"scheduling": {"releaseSeconds": 5}}})
        waiting = asyncio.ensure_future(replace_a_pod(world, 90.0))
        while not world.status().released:
            await asyncio.sleep(1.0)
        seen["condition"] = scheduled(world)
        while world.kubelet.living():
            await asyncio.sleep(1.0)
        seen["restarts"] = world.status().restarts.total + world.status().restarts.free
        await waiting

    outcome = simulate("let go", Workload(replicas=3, steps=20, script=script), scenario)
    assert not outcome.violations, told(outcome)
    assert (seen["condition"].status, seen["condition"].reason) == ("False", "QuotaExceeded")
    assert seen["restarts"] == outcome.status.restarts.total + outcome.status.restarts.free == 1
    assert outcome.status.released is None
