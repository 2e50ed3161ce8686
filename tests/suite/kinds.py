"""Which kind a test is, and how many seconds a test of each kind may take.

The kind follows from the test's file and from the marker `processes`. `python -m tests.suite.budgets --check` compares
the committed durations with these budgets; no test asserts on a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of tests, with the seconds that one of them may take and why."""

    name: str
    budget_s: float
    why: str


PURE = Kind("pure", 1.0, "It computes on values in one process; a developer runs a folder of these at every save.")
SIMULATED = Kind("simulated", 5.0, "It plays whole jobs against a made-up cluster or clock, or searches for examples.")
PROCESS = Kind("process", 12.0, "It starts agents and ranks and waits for them; a worker runs one at a time.")
CLUSTER = Kind("cluster", 60.0, "It starts pods on a real Kubernetes, whose images and nodes are already there.")
FIXTURE = Kind("shared fixture", 30.0, "It replaces the set-up of many tests, but all of them wait for one core.")

KINDS = (PURE, SIMULATED, PROCESS, CLUSTER)
"""The kinds of tests. A shared fixture has a budget too, but it is no test."""

_CLUSTER_FOLDER = "e2e/"
_SIMULATED = (
    "tests/cluster/",
    "tests/control/",
    "tests/planning/test_elastic_properties.py",
    "tests/planning/test_pauses.py",
    "tests/planning/test_properties.py",
    "tests/planning/test_scale.py",
    "tests/runtime/",
    "tests/simulation/",
)


def kind_of(test_id: str, starts_processes: bool) -> Kind:
    """Return the kind of the test `test_id`. `starts_processes`: it has the marker `processes`."""
    if test_id.startswith(_CLUSTER_FOLDER):
        return CLUSTER
    if starts_processes:
        return PROCESS
    return SIMULATED if test_id.startswith(_SIMULATED) else PURE


def file_of(test_id: str) -> str:
    """Return the path of the file that a test or a fixture of a file belongs to, relative to the repository."""
    return test_id.partition("::")[0]
