"""The tables that say what is wrong and what to type first, on made-up incidents and jobs that nothing happens to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.dashboards import scenes
from tests.dashboards.asking import Chosen, dashboards, everything, panels
from tests.dashboards.history import STEP_S, Controller, Job, openmetrics
from tests.dashboards.prometheus import Series, serving, write_blocks

pytestmark = [pytest.mark.processes, pytest.mark.together, pytest.mark.parametrize("run", ["signs"])]

TITLE = "What is wrong, and what to type first"
LENGTH_S = 3 * scenes.HOUR_S
OF_OPERATORS = ("no-leader", "operator-memory")

Told = set[tuple[str, str, str]]


def told(folder: Path, uid: str, jobs: Sequence[Job], controller: Controller) -> Told:
    """What the table of a dashboard says at the end of the history: (job or operator, sign, command)."""
    found = shown(folder, uid, TITLE, jobs, controller)
    return {(one.of("job") or one.of("pod"), one.of("sign"), one.of("command")) for one in found}


def shown(folder: Path, uid: str, title: str, jobs: Sequence[Job], controller: Controller) -> list[Series]:
    """The newest values of a panel of one query."""
    (panel,) = [panel for panel in panels(dashboards()[uid]) if panel["title"] == title]
    (target,) = panel["targets"]
    write_blocks(openmetrics(scenes.END_S - LENGTH_S, LENGTH_S, jobs, controller), folder)
    expr = Chosen(everything().variables, LENGTH_S, 4 * STEP_S, STEP_S).fill(target["expr"])
    with serving(folder, lookback_s=0.9 * STEP_S) as prometheus:
        return prometheus.at(expr, scenes.END_S)


def test_each_incident_of_a_job_is_named_with_a_command_and_calm_jobs_are_not(tmp_path: Path, run: str) -> None:
    of_jobs = [scene for name, scene in scenes.INCIDENTS.items() if name not in OF_OPERATORS]
    jobs = {job.name: job for scene in of_jobs for job in scene.jobs}
    expected = {sign for scene in of_jobs for sign in scene.signs}
    assert len(expected) == 12  # of ten incidents: three jobs lost the same node
    assert told(tmp_path, "trainmaster-fleet", list(jobs.values()), Controller()) == expected


@pytest.mark.parametrize("name", OF_OPERATORS)
def test_each_incident_of_the_operator_is_named_with_a_command(name: str, tmp_path: Path, run: str) -> None:
    scene = scenes.INCIDENTS[name]
    assert set(scene.signs) <= told(tmp_path, "trainmaster-operator", scene.jobs, scene.controller)


@pytest.mark.parametrize("uid", ["trainmaster-fleet", "trainmaster-job"])
def test_without_a_leader_the_dashboards_of_jobs_say_so_because_nobody_tells_of_jobs(
    uid: str, tmp_path: Path, run: str
) -> None:
    scene = scenes.INCIDENTS["no-leader"]
    assert told(tmp_path, uid, scene.jobs, scene.controller) == set(scene.signs)


def test_no_number_of_jobs_is_shown_while_nobody_leads(tmp_path: Path, run: str) -> None:
    scene = scenes.INCIDENTS["no-leader"]
    assert shown(tmp_path, "trainmaster-fleet", "Jobs that need a person", scene.jobs, scene.controller) == []


def test_an_operator_that_has_not_begun_to_watch_is_neither_a_sign_nor_a_point_of_the_curve(
    tmp_path: Path, run: str
) -> None:
    begins = Controller(pods=("begins",), change={"watch_age_seconds": lambda now, value, labels: math.inf})
    assert told(tmp_path / "signs", "trainmaster-operator", scenes.calm(), begins) == set()
    assert shown(tmp_path / "curve", "trainmaster-operator", "Silence of watches", scenes.calm(), begins) == []
