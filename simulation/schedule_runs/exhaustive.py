"""Small scopes, all of them: up to two faults, each at every event of a small job.

An event is whatever is noted of a world: a write of the job's status, a change of a pod, a round's start. The first
fault is placed at each event of the undisturbed run, the second one at each event that follows in the run that the
first one has led to; so every point of each recovery is met. All runs of a scope have one seed: until the second fault
strikes, its run is the one that it was placed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulation.faults.random_faults import Fault
from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.simulated_run import Outcome, run_schedule
from simulation.virtual.virtual_world import Workload

FAULTS = (
    ("kill-rank", 0),
    ("kill-rank", 1),
    ("kill-pod", 0),
    ("kill-pod", 1),
    ("evict-pod", 1),
    ("lose-store", 0),
    ("crash-operator", 0),
    ("break-watches", 0),
)

SCOPES = (
    ("two slots", Workload(replicas=2, steps=4, save_every=2)),
    ("two slots of a script", Workload(replicas=2, steps=4, save_every=2, script=True)),
    ("three slots", Workload(replicas=3, steps=4, save_every=2)),
    ("two slots and a spare", Workload(replicas=2, steps=4, save_every=2, spares=1)),
)


class Place(NamedTuple):
    """Of the first fault."""

    scope: int
    fault: int
    event: int


def places() -> list[Place]:
    """Of the first fault, in every scope."""
    found = []
    for scope in range(len(SCOPES)):
        events = len(run_schedule(_schedule(scope)).noted)
        found += [Place(scope, fault, event) for event in range(1, events + 1) for fault in range(len(FAULTS))]
    return found


def with_a_second(place: Place, stride: int = 1) -> Iterator[tuple[Schedule, Outcome]]:
    """The schedule with one fault, then those with a second one: each `stride`-th of them."""
    single = _schedule(place.scope, (place.fault, place.event))
    outcome = run_schedule(single)
    yield single, outcome
    number = sum(place)  # so that strides of neighbouring places don't start alike
    for event in range(place.event, len(outcome.noted) + 1):
        for fault in range(len(FAULTS)):
            number += 1
            if number % stride == 0:
                double = _schedule(place.scope, (place.fault, place.event), (fault, event))
                yield double, run_schedule(double)


def _schedule(scope: int, *placed: tuple[int, int]) -> Schedule:
    name, workload = SCOPES[scope]
    faults = tuple(
        Fault(kind=FAULTS[fault][0], step=0, delay_s=0.0, seconds=1.0, number=FAULTS[fault][1], event=event)
        for fault, event in placed
    )
    words = ", ".join(f"{FAULTS[fault][0]} {FAULTS[fault][1]} at {event}" for fault, event in placed)
    return Schedule(f"{name}: {words}", workload, faults, seed=name)
