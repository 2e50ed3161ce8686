"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.api.jobs import TRAINMASTER, job
from tests.cli.on_cluster import SPACE, Cluster, lead
from trainmaster_operator.cli import cluster_connection as cluster_commands
from trainmaster_operator.local.api_server.memory_store import MemoryStore

WriteJob = Callable[..., Path]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a little text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 500)
    return folder


@pytest.fixture
def write_job(tmp_path: Path, texts: Path) -> WriteJob:
    """write_job(base, **changes): the file of a job that is valid but for the changes; its data is `texts`."""

    def write(base: dict[str, Any] = TRAINMASTER, **changes: Any) -> Path:
        if base is TRAINMASTER:
            changes = {"spec__training__data": {"path": str(texts)}, **changes}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job(base, **changes), sort_keys=False))
        return path

    return write


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kubeconfig"
    contexts = [
        {"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": SPACE}},
        {"name": "staging", "context": {"cluster": "c", "user": "u"}},
    ]
    path.write_text(yaml.safe_dump({"contexts": contexts, "current-context": "prod"}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def cluster(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    made = Cluster(MemoryStore())
    lead(made.store)

    async def connect(kubeconfig: str | None, **options: Any) -> Cluster:
        made.asked = {"kubeconfig": kubeconfig, **options}
        return made

    monkeypatch.setattr(cluster_commands, "KubernetesCluster", SimpleNamespace(connect=connect))
    monkeypatch.chdir(tmp_path)
    return made
