"""The tool that seeds incidents for readers of the dashboards' pictures, with an incident of a few seconds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from docs.pictures.render.incidents import pages, place, seed
from docs.pictures.render.seeded import INCIDENTS, Incident
from docs.pictures.render.stage import Cast, Stage
from tests.dashboards.test_signs import TITLE
from trainmaster_operator.planning.facts.job_state import JobPhase

ILL, HEALTHY = Cast("language", "pretrain"), Cast("vision", "detector")


async def held(stage: Stage, incident: Incident) -> None:
    rules = [{"causes": ["DataError"], "action": "Hold"}]
    await stage.submit(ILL, "exit:rank=0,step=5,code=91", pods=1, recovery={"rules": rules})
    await stage.until_phase(ILL, JobPhase.HELD)
    await stage.until_steps(HEALTHY)


@pytest.mark.processes
def test_a_seeded_incident_is_on_the_pages_of_all_its_jobs_and_named_on_its_own(
    tmp_path: Path, machine_zygote: Path
) -> None:
    incident = Incident(7, "toy", held, (ILL,), (HEALTHY,), "held", "status", seconds=3.0)
    folder = place(tmp_path, incident)
    asyncio.run(seed(incident, folder, machine_zygote))
    found = dict(pages(folder))
    assert sorted(found) == ["fleet", "job-language-pretrain", "job-vision-detector", "operator", "recovery"]
    assert [row["job"] for row in told(found["fleet"])] == ["pretrain"]
    assert [row["sign"] for row in told(found["job-language-pretrain"])] == ["Held: DataError"]
    assert told(found["job-vision-detector"]) == []
    assert told(found["operator"]) == []
    assert incident.name not in json.dumps([page["chosen"] for page in found.values()])


def told(page: dict[str, Any]) -> list[dict[str, str]]:
    """The rows of the table of what is wrong."""
    (drawn,) = [drawn for drawn in page["panels"] if drawn["panel"]["title"] == TITLE]
    return [series["labels"] for answer in drawn["answers"] for series in answer["series"]]


def test_there_are_twelve_incidents_with_an_answer_and_names_that_tell_nothing() -> None:
    assert [incident.number for incident in INCIDENTS] == list(range(1, 13))
    jobs = [str(job) for incident in INCIDENTS for job in (*incident.ill, *incident.healthy)]
    assert len(jobs) == len(set(jobs))
    for incident in INCIDENTS:
        assert incident.cause
        assert "{" not in incident.command.replace("{.status", "")
        assert incident.healthy
