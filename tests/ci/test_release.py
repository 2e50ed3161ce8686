"""The workflow that publishes a release: its steps as far as they can be tried without the place that runs them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
import tomllib
import yaml

from charts import package
from tests.docker.test_publish import DIGESTS, order, publish
from tests.docs import spoken

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["publish"]["steps"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def script(name: str) -> str:
    (found,) = [step["run"] for step in STEPS if step.get("name") == name]
    return str(found)


def run(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("step", [step for step in STEPS if "run" in step], ids=lambda step: str(step["name"]))
def test_every_script_is_bash_and_names_what_is_there(step: dict[str, Any]) -> None:
    assert subprocess.run(["bash", "-n", "-c", step["run"]], check=False).returncode == 0
    for line in re.sub(r"\\\n\s*", "", step["run"]).splitlines():
        words = line.replace('"', "").split()
        if words[0] in ("make", "python3"):
            assert [*spoken.problems(words)] == []
        if words[0] == "python3":
            assert (ROOT / words[1]).is_file()


def test_only_a_tag_that_is_the_version_of_package_and_chart_is_published() -> None:
    check = script("The tag is the version of the package and of the chart")
    assert run(check, GITHUB_REF_NAME=f"v{VERSION}").returncode == 0
    wrong = run(check, GITHUB_REF_NAME="v99.0.0")
    assert wrong.returncode == 1
    assert wrong.stderr == f"the tag is v99.0.0, a file of the repository says {VERSION}\n"


def test_names_in_the_registry_are_in_lower_case_and_the_tag_loses_its_v(tmp_path: Path) -> None:
    out = tmp_path / "env"
    done = run(
        script("Names in the registry"),
        GITHUB_ENV=str(out),
        GITHUB_REPOSITORY_OWNER="Some-Team",
        GITHUB_REF_NAME="v1.2.3",
    )
    assert done.returncode == 0
    assert out.read_text() == "REGISTRY=ghcr.io/some-team/trainmaster\nVERSION=1.2.3\n"


def test_the_packaged_chart_installs_the_images_that_were_pushed_without_further_values(tmp_path: Path) -> None:
    images = tmp_path / "values-images.yaml"
    images.write_text(publish.values(order(), DIGESTS))
    assert package.main(["--images", str(images), str(tmp_path / "dist" / "trainmaster")]) == 0
    with helm_python.Chart.load(tmp_path / "dist" / "trainmaster") as chart:
        rendered = chart.render({}, name="trainmaster", namespace="system")
    deployment = yaml.safe_load(rendered["trainmaster/templates/deployment.yaml"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    name = "registry.example.com/team"
    assert container["image"] == f"{name}/operator@{DIGESTS['operator']}"
    assert f"--trainer-image={name}/trainer@{DIGESTS['trainer']}" in container["args"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it names no image"),
        ("replicas: 3\n", "'replicas: 3' is not what `make images` writes"),
        ("other:\n  tag: a\n", "values.yaml of the chart has no other.tag"),
    ],
)
def test_a_file_of_other_values_is_refused(
    tmp_path: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images.yaml"
    images.write_text(text)
    assert package.main(["--images", str(images), str(tmp_path / "chart")]) == 2
    assert capsys.readouterr().err == f"package.py: {images}: {sentence}\n"
    assert not (tmp_path / "chart").exists()
