"""What people read and copy."""

from __future__ import annotations

from typing import Any

import helm_python
import yaml

from charts.generate import CHART
from tests.chart.rendering import only, render
from trainmaster_operator.api.validation.job_validation import validate


def notes(values: dict[str, Any] | None = None) -> str:
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(values or {}, name="trainmaster", namespace="trainmaster-system")
    return rendered["trainmaster/templates/NOTES.txt"]


def test_the_first_job_of_the_notes_is_valid() -> None:
    text = notes().split("<<END\n")[1].split("\nEND\n")[0]
    assert validate(yaml.safe_load(text)) == []


def test_the_notes_start_the_first_job_where_the_operator_looks() -> None:
    assert "kubectl apply -n default -f -" in notes()
    assert "kubectl apply -n team-a -f -" in notes({"watchNamespace": "team-a"})


def test_who_installs_without_images_reads_how_to_push_them() -> None:
    assert "make images REGISTRY=" in notes()
    assert "make images" not in notes({"image": {"repository": "registry.example.com/team/operator"}})
    assert "make images" not in notes({"image": {"pullPolicy": "Never"}})  # kind's nodes have them


def test_without_rights_the_notes_name_the_accounts_that_need_them() -> None:
    assert "rbac.create" not in notes()
    values = {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "ours"}}
    account = only(render(values, tests=True), "ServiceAccount")["metadata"]["name"]
    assert f"ours and {account}." in notes(values)


def test_the_readme_names_all_that_the_operator_made_and_an_uninstall_leaves() -> None:
    """What its Role lets it write by name."""
    paragraph = (CHART / "README.md").read_text().split("`helm uninstall` leaves")[1].split("\n\n")[0]
    rules = only(render(), "Role", "trainmaster-operator")["rules"]
    named = {name for rule in rules for name in rule.get("resourceNames", [])}
    assert len(named) == 4
    assert {name for name in named if f"`{name}`" not in paragraph} == set()


def test_the_notes_warn_of_what_an_uninstall_would_delete() -> None:
    assert "deletes all training jobs" not in notes()
    assert "deletes all training jobs" in notes({"crds": {"keep": False}})


def test_the_example_on_artifact_hub_is_valid() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (example,) = yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"])
    assert validate(example) == []
