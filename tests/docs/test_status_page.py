"""docs/status.md names every phase, condition, group and field of a status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmaster_operator.api.crd import crd_schema
from trainmaster_operator.api.status_terms import JobPhase
from trainmaster_operator.planning.job_conditions import TRUE_IN
from trainmaster_operator.planning.lifecycle import checkpoint_conditions, elastic_resize, revision
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import NEEDS_MIGRATION
from trainmaster_operator.planning.placement import gang_release
from trainmaster_operator.runtime.job_pass.error_conditions import RECONCILE_ERROR

PAGE = (Path(__file__).parents[2] / "docs" / "status.md").read_text()
STATUS = crd_schema.job_schema()["properties"]["status"]["properties"]
CONDITIONS = (
    *TRUE_IN,
    *(elastic_resize.AS_WISHED, gang_release.SCHEDULED, revision.PENDING, revision.LOST),
    *(
        checkpoint_conditions.FAILED,
        checkpoint_conditions.STALLED,
        checkpoint_conditions.UNPROTECTED,
        NEEDS_MIGRATION,
        RECONCILE_ERROR,
    ),
)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_page_has_every_condition(condition: str) -> None:
    assert f"\n| {condition} |" in PAGE


@pytest.mark.parametrize("phase", [phase.value for phase in JobPhase])
def test_the_page_has_every_phase(phase: str) -> None:
    assert re.search(rf"^\| [\w, ]*\b{phase}\b[\w, ]* \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("group", STATUS)
def test_the_page_has_every_group_and_its_fields(group: str) -> None:
    assert f"`{group}`" in PAGE
    fields = STATUS[group].get("items", STATUS[group]).get("properties", {})
    if group == "internal":
        return  # it is the operator's own
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{group}` |")]
    text = rows[0] if rows else PAGE
    assert [name for name in fields if f"`{name}`" not in text] == []


def test_the_page_has_every_column() -> None:
    (version,) = crd_schema.definition()["spec"]["versions"]
    for column in version["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".status."):
            wide = " (wide)" if column.get("priority") else ""
            field = column["jsonPath"].removeprefix(".status.")
            assert f"| {column['name'].upper()}{wide} | `{field}` |" in PAGE
