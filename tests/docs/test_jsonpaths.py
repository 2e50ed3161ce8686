"""Every path into a job that a page asks kubectl for leads to a field of the schema: for others kubectl is silent."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml

from tests.docs.blocks import ROOT, pages

_PATH = re.compile(r"\b(?:dtj|distributedtrainingjobs?)\b.*?jsonpath='?\{\.([\w.\[\]]+)\}")


@cache
def _schema() -> dict[str, Any]:
    """Return the schema of jobs. Each worker of the suite imports this file, and reading the schema takes a second."""
    crd = yaml.safe_load((ROOT / "manifests/crd/distributedtrainingjobs.trainmaster.dev.yaml").read_text())
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def asked(text: str) -> list[str]:
    """Return the paths into jobs in the commands of a text."""
    return _PATH.findall(text)


def leads_somewhere(path: str) -> bool:
    """Return whether a path such as `status.goodput.ratio` names a field, as far as the schema lists fields."""
    node = _schema()
    for name in re.sub(r"\[\d+\]", ".0", path).split("."):
        found = node.get("items") if name == "0" else node.get("properties", {}).get(name)
        if found is None:  # Kubernetes has the schema of a pod's template; a status keeps what newer operators wrote
            unlisted = name != "0" and path.startswith("spec.") and node.get("x-kubernetes-preserve-unknown-fields")
            return "additionalProperties" in node or bool(unlisted)
        node = found
    return True


ASKED = [(page, path) for page in pages() for path in asked((ROOT / page).read_text())]


def test_pages_ask_for_fields_of_jobs() -> None:
    assert len(ASKED) > 4


@pytest.mark.parametrize(("page", "path"), ASKED)
def test_a_path_into_a_job_leads_to_a_field(page: str, path: str) -> None:
    assert leads_somewhere(path), f"{page}: jobs have no field {path}"


@pytest.mark.parametrize("path", ["status.straggler", "status.goodput.lost", "spec.steps", "state"])
def test_a_path_to_nothing_is_told(path: str) -> None:
    assert not leads_somewhere(path)
