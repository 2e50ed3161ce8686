"""The crash matrix: in each scenario the operator is killed before and after each of its writes, and started again.

The job must end as it does without a crash. Runs that differ from one write on share what comes before it: the process
forks there. Where little comes before it, to run that again is less work than a fork.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, NoReturn

from simulation.schedule_runs.scenario import Scenario
from simulation.schedule_runs.scenarios import SCENARIOS
from simulation.schedule_runs.simulated_run import Outcome, simulate
from trainmaster_operator.runtime.reconcile import Policies

When = Literal["before", "after"]

Named = tuple[str, Outcome]
"""A run's name and what it came to."""

AT_ONCE = 2
"""Children that run beside their parent."""

EARLY_S = 1.0
"""Virtual seconds in which a run is repeated rather than forked. A fork copies each page that it writes to, which takes
as long as a third of a run. In its first second a job does a tenth of its work and makes a third of its writes."""


class _Child(NamedTuple):
    number: int
    when: When
    pid: int
    reading: int  # the end of a pipe


class _Forks:
    """Asked at each write of the undisturbed run whether the operator dies there: it does, in a child."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[int, When], Outcome | None] = {}  # None: to be repeated from the begin
        self._children: deque[_Child] = deque()
        self._writing: int | None = None  # in a child: where its parent waits for the outcome

    @property
    def in_child(self) -> bool:
        return self._writing is not None

    def __call__(self, number: int, when: When) -> bool:
        loop = asyncio.get_running_loop()
        self.outcomes[number, when] = None
        if loop.time() < EARLY_S:
            return False
        while len(self._children) >= AT_ONCE:
            self._collect()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            self._children.append(_Child(number, when, pid, reading))
            return False
        os.close(reading)
        self._writing = writing
        asyncio._set_running_loop(loop)  # it belongs to a process
        gc.disable()  # we don't live for long
        return True

    def collect_all(self) -> None:
        while self._children:
            self._collect()

    def abandon(self) -> None:
        """Ends what still runs, if anything does."""
        for child in self._children:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            os.close(child.reading)
        self._children.clear()

    def tell(self, outcome: Outcome) -> NoReturn:
        """In a child: its last words."""
        assert self._writing is not None
        with os.fdopen(self._writing, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)

    def _collect(self) -> None:
        child = self._children.popleft()
        with os.fdopen(child.reading, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child.pid, 0)
        if not told:
            raise RuntimeError(f"the run in which the operator dies {child.when} write {child.number} broke off")
        self.outcomes[child.number, child.when] = pickle.loads(told)  # noqa: S301 - our own child's


def crash_matrix(scenario: Scenario) -> Iterator[Named]:
    """The undisturbed run first, then those in which the operator dies before and after each of its writes.

    Each outcome has its violations.
    """
    forks = _Forks()
    try:
        expected = _run(scenario, None, forks)
        if forks.in_child:
            forks.tell(expected)
        forks.collect_all()
    except BaseException:
        if not forks.in_child:
            forks.abandon()
            raise
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)
    yield _undisturbed(scenario, expected)
    for (number, when), outcome in forks.outcomes.items():
        yield _disturbed(scenario, expected, number, when, outcome or crashed(scenario, number, when))


def count_runs(scenario: Scenario) -> int:
    """Return how many runs `crash_matrix` makes. Needs the undisturbed one alone."""
    return 1 + len(_places(scenario, None)[1])


def crash_runs(scenario: Scenario, made: Callable[[], AbstractContextManager[Policies]]) -> Iterator[Named]:
    """The same outcomes in the same order, each of a run in this process from its begin, with policies of its own: less
    work for who needs only the first of them."""
    with made() as policies:
        expected, places = _places(scenario, policies)
    yield _undisturbed(scenario, expected)
    for number, when in places:
        with made() as policies:
            outcome = crashed(scenario, number, when, policies)
        yield _disturbed(scenario, expected, number, when, outcome)


def _places(scenario: Scenario, policies: Policies | None) -> tuple[Outcome, list[tuple[int, When]]]:
    """The undisturbed run, and where the operator can die in it: nowhere after a write that is refused."""
    places: list[tuple[int, When]] = []

    def seen(number: int, when: When) -> bool:
        places.append((number, when))
        return False

    return _run(scenario, policies, seen), places


def crashed(scenario: Scenario, number: int, when: When, policies: Policies | None = None) -> Outcome:
    """One of these runs, in this process from its begin."""
    return _run(scenario, policies, lambda *place: place == (number, when))


def _undisturbed(scenario: Scenario, expected: Outcome) -> Named:
    if expected.phase != scenario.phase:
        expected.violations.append(f"{scenario.phase} was expected, not {expected.phase}")
    return scenario.name, expected


def _disturbed(scenario: Scenario, expected: Outcome, number: int, when: When, outcome: Outcome) -> Named:
    if scenario.summary(outcome) != scenario.summary(expected):
        outcome.violations.append(f"{scenario.summary(outcome)} instead of {scenario.summary(expected)}")
    return f"{scenario.name}, the operator dies {when} write {number} of {expected.writes}", outcome


def _run(scenario: Scenario, policies: Policies | None, dies_at: Callable[[int, When], bool]) -> Outcome:
    return simulate(
        scenario.name,
        scenario.workload(),
        scenario.script,
        fails_with=scenario.ends_with if scenario.phase == "Failed" else "",
        policies=policies,
        dies_at=dies_at,
    )


__all__ = ["SCENARIOS", "Scenario", "count_runs", "crash_matrix", "crash_runs", "crashed"]
