"""The smallest schedule that still goes wrong: fewer faults, then simpler ones, then a simpler job.

Whatever is tried must break a promise too, of the same kind: numbers and names in its words may differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.simulated_run import Outcome
from simulation.virtual.virtual_world import Workload

TRIES = 400


def kind_of(violation: str) -> str:
    return re.sub(r"[0-9.]+", "#", violation.partition(":")[0])


def minimise(schedule: Schedule, run: Callable[[Schedule], Outcome], tries: int = TRIES) -> Schedule:
    """The simplest schedule found with at most so many runs; the same one if it breaks no promise."""
    kinds = {kind_of(violation) for violation in run(schedule).violations}
    if not kinds:
        return schedule  # whatever a simpler one breaks is something else
    left = tries

    def fails(candidate: Schedule) -> bool:
        nonlocal left
        left -= 1
        return bool(kinds & {kind_of(violation) for violation in run(candidate).violations})

    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _simpler(schedule):
            if left <= 0:
                break
            if fails(candidate):
                schedule, smaller = candidate, True
                break  # start again from what is the simplest now
    return schedule


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    """One step simpler each, those that promise most first. Every chain of them ends."""
    faults = schedule.faults
    for size in (len(faults) // 2, 1):
        for at in range(0, len(faults), size) if size else ():
            yield replace(schedule, faults=faults[:at] + faults[at + size :])
    for at, fault in enumerate(faults):
        changes: list[dict[str, Any]] = [
            *({"delay_s": value} for value in (0.0, round(fault.delay_s, 1)) if value < fault.delay_s),
            *({"number": value} for value in (0, 1, fault.number % 12) if value < fault.number),
            *({"step": value} for value in (0, fault.step // 2) if value < fault.step),
            *({"seconds": value} for value in (0.2, 2.0, round(fault.seconds)) if value < fault.seconds),
        ]
        for change in changes:
            yield replace(schedule, faults=(*faults[:at], replace(fault, **change), *faults[at + 1 :]))
    for workload in _simpler_jobs(schedule.workload):
        yield replace(schedule, workload=workload)


def _simpler_jobs(workload: Workload) -> Iterator[Workload]:
    for replicas in range(1, workload.replicas):
        yield replace(workload, replicas=replicas)
    if workload.ranks_per_pod > 1:
        yield replace(workload, ranks_per_pod=1)
    if workload.spares:
        yield replace(workload, spares=0)
    if workload.elastic:
        yield replace(workload, elastic=False)
    if workload.script:
        yield replace(workload, script=False)
    if not workload.takeover:
        yield replace(workload, takeover=True)
    if workload.steps > 8:
        yield replace(workload, steps=8)
