from __future__ import annotations

from pathlib import Path

import pytest
import tomllib
import yaml

import trainmaster
from charts import generate
from charts.generate import CHART, NAMESPACE, ROOT
from tests.chart.rendering import ids, render

INSTALL = ROOT / "manifests" / "install.yaml"


def test_no_generated_file_is_stale() -> None:
    assert generate.main(["--check"]) == 0


def test_a_stale_file_is_told_with_a_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "file"
    stale.write_text("old\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "generated", lambda: iter([(stale, "new\n")]))
    assert generate.main(["--check"]) == 1
    told = capsys.readouterr()
    assert "-old\n+new\n" in told.out
    assert "file is stale: run `make generate`" in told.err
    assert generate.main([]) == 0
    assert stale.read_text() == "new\n"


def test_the_plain_install_has_all_objects_and_the_namespace() -> None:
    objects = list(yaml.safe_load_all(INSTALL.read_text()))
    assert ids(objects) == {*ids(render()), ("Namespace", NAMESPACE)}
    assert [obj["kind"] for obj in objects][:3] == ["Namespace", "CustomResourceDefinition", "ServiceAccount"]


def test_the_plain_install_knows_nothing_of_helm() -> None:
    body = [line for line in INSTALL.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in body if "helm" in line.lower()] == []


def test_all_versions_are_the_distributions() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version == trainmaster.__version__
    images = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert {entry["image"].partition(":")[2] for entry in images} == {version}


def test_artifact_hub_gets_lists_where_it_wants_lists() -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    for name in ("crds", "crdsExamples", "images", "changes"):
        assert isinstance(yaml.safe_load(annotations[f"artifacthub.io/{name}"]), list)
