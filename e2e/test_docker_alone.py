"""The demo in a container of a real Docker: its report and its metrics reach this machine."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.containerd import LAYOUT
from e2e.cluster.images import TRAINER
from e2e.cluster.shell import run, until
from e2e.kind import docker
from e2e.kind.docker import Docker
from e2e.kind.places import DOCKER_IP

pytestmark = pytest.mark.trial

NAME = "trainmaster-e2e-demo"
PORT = 9090
LIMIT_S = 300


@pytest.fixture
def engine() -> Docker:
    """The docker that a kind cluster is in, else the one of this machine."""
    found = docker.found() or Docker(dict(os.environ), ours=False)
    if not found.works("info"):
        pytest.skip("no docker answers here: `python -m e2e.kind up` brings one")
    return found


@pytest.fixture
def image(engine: Docker, tmp_path: Path) -> Iterator[str]:
    archive = tmp_path / "trainer.tar"
    run("skopeo", "copy", f"oci:{LAYOUT.folder}:{TRAINER}", f"docker-archive:{archive}:{TRAINER}")
    engine.run("load", "--input", archive)
    yield TRAINER
    engine.run("image", "rm", "--force", TRAINER)


def metrics(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=2) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):  # not yet
        return ""


def test_the_demo_in_a_container_recovers_and_its_report_and_metrics_come_out(
    engine: Docker, image: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)  # the container's user isn't this one
    host = DOCKER_IP if engine.ours else "127.0.0.1"
    published = f"--publish={'' if engine.ours else '127.0.0.1:'}{PORT}:{PORT}"
    volume, memory = f"--volume={runs}:/runs", "--shm-size=1g"
    engine.run("run", "--detach", f"--name={NAME}", "--init", published, volume, memory, image, "demo", "--plain")
    try:
        until(lambda: "trainmaster_job_step" in metrics(f"{host}:{PORT}"), LIMIT_S, "no metrics came out")
        code = engine.run("wait", NAME).strip()
        said = engine.run("logs", NAME)
        assert code == "0", said
        assert "Nothing was lost" in said
        assert (runs / "demo" / "report.html").stat().st_size > 1000
    finally:
        engine.run("rm", "--force", NAME)
