"""What an install with each of the chart's own values files makes, as a file. TRAINMASTER_GOLDEN=write renews them."""

from __future__ import annotations

import os

import pytest
import yaml

from charts.generate import CHART
from tests.chart.rendering import render, values_file
from tests.manifests.test_golden import GOLDEN

FILES = sorted(path.name for path in CHART.glob("values-*.yaml"))
CRD = "CustomResourceDefinition"  # compared with the models elsewhere, and longer than all else together


def rendered(name: str) -> str:
    values = values_file(name)
    objects = [obj for obj in render(values) if obj["kind"] != CRD]
    return yaml.safe_dump_all([*objects, *render(values, tests=True)], sort_keys=False, width=110)


def test_every_page_of_an_installation_has_its_values() -> None:
    pages = {path.stem.removeprefix("install-") for path in (CHART.parents[1] / "docs").glob("install-*.md")}
    assert {name.removeprefix("values-").removesuffix(".yaml") for name in FILES} == pages


@pytest.mark.parametrize("name", FILES)
def test_what_the_values_of_a_page_install(name: str) -> None:
    path = GOLDEN / f"chart-{name.removeprefix('values-')}"
    if os.environ.get("TRAINMASTER_GOLDEN") == "write":
        path.write_text(rendered(name))
    assert rendered(name) == path.read_text()
