"""Crash matrices, made in a process that holds nothing but the operator.

A crash run is a fork. A fork copies the page tables of its parent and unmaps that memory at its end. A test process has
torch and all tests in its memory, so both would cost as much as the run itself.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from simulation.schedule_runs.crash_matrix import count_runs, crash_matrix
from simulation.schedule_runs.scenario import Scenario
from simulation.schedule_runs.simulated_run import Outcome
from trainmaster.host import processes

Matrix = list[tuple[str, Outcome]]


class Matrices:
    """Starts the process when it is first needed, and makes each matrix once."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._small = ProcessPoolExecutor(1, spawn, _begin, (os.getpid(),))
        self._known: dict[str, Matrix] = {}

    def of(self, scenario: Scenario) -> Matrix:
        """Return the outcome of each run with its name. The scenario's script must be a function of a module that can
        be imported without pytest."""
        if scenario.name not in self._known:
            self._known[scenario.name] = self._small.submit(_matrix, scenario).result()
        return self._known[scenario.name]

    def has(self, scenario: Scenario) -> bool:
        """Whether the scenario's matrix is made."""
        return scenario.name in self._known

    def count(self, scenario: Scenario) -> int:
        """Return how many runs the scenario's matrix has."""
        made = self._known.get(scenario.name)
        return count_runs(scenario) if made is None else len(made)

    def close(self) -> None:
        self._small.shutdown()


def _begin(parent: int) -> None:
    processes.die_with_parent(parent)
    logging.disable(logging.CRITICAL)  # what matters stands in the outcomes


def _matrix(scenario: Scenario) -> Matrix:
    return list(crash_matrix(scenario))
