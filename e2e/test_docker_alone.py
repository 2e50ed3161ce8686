"""The demo in a container of a real Docker: its report and its metrics reach this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.containerd import LAYOUT
from e2e.cluster.images import TRAINER
from e2e.cluster.places import REPOSITORY
from e2e.cluster.shell import run, until
from e2e.kind import docker
from e2e.kind.docker import Docker

# Both tests publish one port, and remove one image at their end.
pytestmark = [pytest.mark.trial, pytest.mark.exclusive]

NAME = "trainmaster-e2e-demo"
PROJECT = "trainmaster-e2e"
METRICS = "http://127.0.0.1:9090/metrics"
READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())"
LIMIT_S = 300


@pytest.fixture(scope="module")
def engine() -> Docker:
    """The docker that a kind cluster is in, else the one of this machine."""
    found = docker.found() or Docker(dict(os.environ), ours=False)
    if not found.works("info"):
        pytest.skip("no docker answers here: `python -m e2e.kind docker` brings one")
    return found


@pytest.fixture(scope="module")
def image(engine: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    archive = tmp_path_factory.mktemp("image") / "trainer.tar"
    run("skopeo", "copy", f"oci:{LAYOUT.folder}:{TRAINER}", f"docker-archive:{archive}:{TRAINER}")
    engine.run("load", "--input", archive)
    archive.unlink()
    yield TRAINER
    engine.run("image", "rm", "--force", TRAINER)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(0o777)  # the container's user isn't this one
    return folder


def assert_the_demo_recovers(engine: Docker, container: str, runs: Path) -> None:
    """Its metrics are seen while it runs, and its report when it has ended."""

    def metrics() -> str:
        return engine.beside(sys.executable, "-c", READ, METRICS)

    until(lambda: "trainmaster_job_step" in metrics(), LIMIT_S, "no metrics came out")
    code = engine.run("wait", container).strip()
    said = engine.run("logs", container)
    assert code == "0", said
    assert "Nothing was lost" in said
    assert (runs / "demo" / "report.html").stat().st_size > 1000


def test_the_demo_in_a_container_recovers_and_its_report_and_metrics_come_out(
    engine: Docker, image: str, runs: Path
) -> None:
    """With no other options than the trainer's Dockerfile names."""
    engine.run("create", f"--name={NAME}", "--publish=9090:9090", f"--volume={runs}:/runs", image, "demo")
    try:
        engine.run("start", NAME)
        assert_the_demo_recovers(engine, NAME, runs)
    finally:
        engine.run("rm", "--force", NAME)


def test_compose_runs_the_demo_as_another_user_and_its_report_and_metrics_come_out(
    engine: Docker, image: str, runs: Path
) -> None:
    """Without the build, which needs a base image from a registry."""
    composer = engine.composer()
    if not composer:
        pytest.skip("neither `docker compose` nor `docker-compose` is here")
    asked = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())
    asked["services"]["demo"]["image"] = image
    file = runs.parent / "docker" / "compose.yaml"  # it names the folder beside its own
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(asked))
    words = [*composer, f"--project-name={PROJECT}", f"--file={file}"]
    environment = {**engine.environment, "RUN_AS": "1234:1234"}
    try:
        run(*words, "up", "--detach", "--no-build", env=environment)
        container = run(*words, "ps", "--quiet", "demo", env=environment).strip()
        assert_the_demo_recovers(engine, container, runs)
        assert (runs / "demo" / "report.html").stat().st_uid == 1234
    finally:
        run(*words, "down", env=environment)
