"""Whether the simulator finds a seeded bug, and in how many schedules."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.schedule_runs.crash_matrix import SCENARIOS, crash_runs
from simulation.schedule_runs.seeded_bugs import Bug
from simulation.schedule_runs.simulated_run import run_growing_seed, run_seed


@dataclass(frozen=True)
class Found:
    """What a search for a seeded bug has found."""

    bug: str
    schedules: int  # tried until it was found, or at all
    violation: str  # "" if it was not


def find(bug: Bug, most: int, first: int = 0) -> Found:
    """The first schedule in which it breaks a promise, or the first crash in its scenario."""
    if bug.scenario:
        return _find_by_crashes(bug)
    run = run_growing_seed if bug.growing else run_seed
    for seed in range(first, first + most):
        with bug.made() as policies:
            outcome = run(seed, policies)
        if outcome.violations:
            return Found(bug.name, seed - first + 1, outcome.violations[0])
    return Found(bug.name, most, "")


def _find_by_crashes(bug: Bug) -> Found:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == bug.scenario)
    tried = 0
    for _, outcome in crash_runs(scenario, bug.made):
        tried += 1
        if outcome.violations:
            return Found(bug.name, tried, outcome.violations[0])
    return Found(bug.name, tried, "")
