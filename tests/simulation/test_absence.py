"""An operator that is away for minutes: the next one tells the times of what happened meanwhile as they were."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from simulation.schedule_runs.scenario import of_slot
from simulation.schedule_runs.simulated_run import Outcome, simulate
from simulation.virtual.virtual_world import Workload, World
from tests.simulation.told import told

AWAY_S = 250.0
LOOK_S = 0.01  # between two looks at whether a round has stepped


@dataclass
class Absence:
    """The operator dies at step 20, then so many ranks, each half a minute after the one before."""

    failures: int
    seconds: list[float] = field(default_factory=list)  # of each recovery, as anybody sees who watches the ranks

    async def __call__(self, world: World) -> None:
        await world.until_step(20)
        assert world.operator is not None
        world.operator.crash("nobody listens from now on")
        for _ in range(self.failures):
            await asyncio.sleep(30.0)
            round, failed_at = world.newest_round, world.clock.monotonic()
            of_slot(world, 1).ranks[0].exit(-9, "killed by signal 9")
            while world.newest_round == round:
                await asyncio.sleep(LOOK_S)
            self.seconds.append(world.clock.monotonic() - failed_at)


def play(absence: Absence, **shape: Any) -> Outcome:
    workload = Workload(replicas=2, steps=600, step_s=0.5, restart_s=(AWAY_S, AWAY_S), save_every=5, **shape)
    outcome = simulate("an operator away", workload, absence)
    assert not outcome.violations, told(outcome)
    return outcome


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_recoveries_and_goodput_are_told_as_they_were(failures: int) -> None:
    absence = Absence(failures)
    status = play(absence).status
    recoveries = status.recoveries
    assert [r.totalSeconds for r in recoveries] == [pytest.approx(s, abs=2 * LOOK_S) for s in absence.seconds]
    # A step takes half a second, and up to five are done again.
    again = sum(0.5 * (r.lostSteps or 0) for r in recoveries)
    lost = status.lost.get("Crash", 0.0)
    assert lost == pytest.approx(sum(absence.seconds) + again, abs=0.6 * max(failures, 1))
    assert float(status.goodput) >= 0.96


def test_a_script_that_restarts_by_itself_meanwhile_is_no_loss_of_minutes() -> None:
    absence = Absence(1)
    status = play(absence, script=True).status
    (recovery,) = status.recoveries
    assert recovery.totalSeconds == pytest.approx(absence.seconds[0], abs=2 * LOOK_S)
    assert recovery.lostSteps is None
