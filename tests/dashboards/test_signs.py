"""The tables that say what is wrong and what to type first, on made-up incidents and jobs that nothing happens to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def shown(
    folder: Path, uid: str, title: str, jobs: Sequence[Job], controller: Controller, **variables: str
) -> list[Series]:
    """The newest values of a panel of one query. `variables`: of the dashboard; default: everything."""
    (panel,) = [panel for panel in panels(dashboards()[uid]) if panel["title"] == title]
    (target,) = panel["targets"]
    write_blocks(openmetrics(scenes.END_S - LENGTH_S, LENGTH_S, jobs, controller), folder)
    expr = Chosen(everything(**variables).variables, LENGTH_S, 4 * STEP_S, STEP_S).fill(target["expr"])
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


def test_the_dashboard_of_a_job_says_what_is_wrong_with_that_job_alone(tmp_path: Path, run: str) -> None:
    jobs = list({job.name: job for name in ("straggler", "image") for job in scenes.INCIDENTS[name].jobs}.values())
    slow, waits = {"namespace": "vision", "job": "detector"}, {"namespace": "documents", "job": "ocr"}

    def of_job(title: str, job: dict[str, str]) -> Series:
        (found,) = shown(tmp_path / f"{title} {job['job']}", "trainmaster-job", title, jobs, Controller(), **job)
        return found

    assert of_job(TITLE, slow).of("sign") == "One rank is slow, and all others wait for it"
    assert of_job(TITLE, waits).of("sign") == "Its image can't be pulled: ImageError"
    assert of_job("Straggler", slow).value == pytest.approx(2.1, rel=0.03)  # made-up values wobble
    reason = of_job("What it waits for", waits)
    assert (reason.of("reason"), reason.value) == ("ImageError", LENGTH_S)


def test_no_number_of_jobs_is_shown_while_nobody_leads(tmp_path: Path, run: str) -> None:
    scene = scenes.INCIDENTS["no-leader"]
    assert shown(tmp_path, "trainmaster-fleet", "Jobs that need a person", scene.jobs, scene.controller) == []


def test_an_operator_that_has_not_begun_to_watch_is_neither_a_sign_nor_a_point_of_the_curve(
    tmp_path: Path, run: str
) -> None:
    begins = Controller(pods=("begins",), change={"watch_age_seconds": lambda now, value, labels: math.inf})
    assert told(tmp_path / "signs", "trainmaster-operator", scenes.calm(), begins) == set()
    assert shown(tmp_path / "curve", "trainmaster-operator", "Silence of watches", scenes.calm(), begins) == []


NEED_NOBODY = {"lost-node"}
"""Incidents of jobs that are over by themselves: their jobs train again."""


def test_in_each_incident_of_a_job_the_number_of_jobs_that_need_a_person_is_not_zero(tmp_path: Path, run: str) -> None:
    of_jobs = {name: scene for name, scene in scenes.INCIDENTS.items() if name not in OF_OPERATORS}
    jobs = {job.name: job for scene in of_jobs.values() for job in scene.jobs}
    ill = {sign[0] for name, scene in of_jobs.items() if name not in NEED_NOBODY for sign in scene.signs}
    (number,) = shown(tmp_path, "trainmaster-fleet", "Jobs that need a person", list(jobs.values()), Controller())
    assert number.value == len(ill)


def test_a_job_that_only_waits_for_a_node_needs_nobody_and_is_a_sign(tmp_path: Path, run: str) -> None:
    waits = [Job("waits", episodes=[scenes.Episode(0, "Pending", "Unschedulable")])]
    (number,) = shown(tmp_path / "number", "trainmaster-fleet", "Jobs that need a person", waits, Controller())
    assert number.value == 0
    (sign,) = told(tmp_path / "signs", "trainmaster-fleet", waits, Controller())
    assert sign[1] == "It waits for its pods: Unschedulable"
    (ready,) = shown(tmp_path / "ready", "trainmaster-fleet", "Ready workers, mean of jobs", waits, Controller())
    assert ready.value == 0


@pytest.mark.parametrize("title", ["Jobs that wait", "Jobs that train", "Goodput", "Ready workers, mean of jobs"])
def test_without_a_leader_no_tile_has_a_number_of_jobs(title: str, tmp_path: Path, run: str) -> None:
    scene = scenes.INCIDENTS["no-leader"]
    assert shown(tmp_path, "trainmaster-fleet", title, scene.jobs, scene.controller) == []


@pytest.mark.parametrize("title", ["Jobs that stand, and why", "Jobs that wait, and for what"])
def test_without_a_leader_a_table_of_jobs_says_that_it_is_not_known(title: str, tmp_path: Path, run: str) -> None:
    scene = scenes.INCIDENTS["no-leader"]
    (row,) = shown(tmp_path, "trainmaster-fleet", title, scene.jobs, scene.controller)
    assert row.of("reason") == "not known: no operator leads"
    assert math.isnan(row.value)


def test_the_incidents_of_the_operator_are_named_on_the_dashboard_of_the_fleet_too(tmp_path: Path, run: str) -> None:
    scene = scenes.INCIDENTS["operator-memory"]
    found = told(tmp_path, "trainmaster-fleet", scene.jobs, scene.controller)
    assert {sign for _, sign, _ in found} >= {"An operator starts again and again"}


def test_an_operator_that_the_api_server_refuses_is_named_on_the_dashboard_of_the_fleet(
    tmp_path: Path, run: str
) -> None:
    refused = Controller(change={"api_calls_total": lambda now, value, labels: now if labels["code"] == "0" else value})
    found = told(tmp_path, "trainmaster-fleet", scenes.calm(), refused)
    assert {(sign, command) for _, sign, command in found} == {
        (
            "The operator's calls fail, with code: 0",
            "kubectl logs deployment/trainmaster-operator -n trainmaster-system",
        )
    }


def test_what_happens_while_a_scrape_fails_is_one_bar_after_it(tmp_path: Path, run: str) -> None:
    def lost(now: float, value: float, labels: Mapping[str, str]) -> float | None:
        return None if 3000 < now < 3090 else 3.0 * (now >= 3030)

    (panel,) = [
        panel for panel in panels(dashboards()["trainmaster-operator"]) if panel["title"] == "Agents that were lost"
    ]
    begin_s = scenes.END_S - LENGTH_S
    failed = Controller(change={"agents_lost_total": lost})
    write_blocks(openmetrics(begin_s, LENGTH_S, scenes.calm(), failed), tmp_path)
    expr = Chosen(everything().variables, LENGTH_S, 4 * STEP_S, STEP_S).fill(panel["targets"][0]["expr"])
    with serving(tmp_path, lookback_s=0.9 * STEP_S) as prometheus:
        (series,) = prometheus.over(expr, begin_s, scenes.END_S, STEP_S)
    assert [(at_s - begin_s, value) for at_s, value in series.points if value] == [(3090.0, 3.0)]
