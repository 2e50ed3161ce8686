"""The cluster that the tests run on, the operator in it, and a namespace for each test.

`E2E_CLUSTER`: `own` (the default: `python -m e2e.cluster` has it up), or `current` (whatever KUBECONFIG says, with the
images at hand). The tests never take the cluster down: `make e2e` does.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import places
from e2e.installation import Installation
from e2e.kube import Kube
from e2e.world import World

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "last: looks back at what all others did")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def own_cluster() -> bool:
    """Whether nodes can be lost and the API server restarted."""
    return os.environ.get("E2E_CLUSTER", "own") == "own"


@pytest.fixture(scope="session")
def kube(own_cluster: bool) -> Kube:
    kubeconfig = places.KUBECONFIG if own_cluster else Path(os.environ.get("KUBECONFIG", Path.home() / ".kube/config"))
    if not kubeconfig.exists():
        pytest.fail(f"no cluster: {kubeconfig} is missing (`make cluster` starts one)")
    kubectl = places.BIN / "kubectl" if own_cluster else shutil.which("kubectl")
    assert kubectl, "kubectl isn't on the PATH"
    return Kube(kubeconfig, Path(kubectl))


@pytest.fixture(scope="session")
def installation(kube: Kube, own_cluster: bool) -> Iterator[Installation]:
    """The chart, installed once for all tests, and uninstalled after them. Two runs would take it from each other."""
    lock = kube.kubeconfig.with_name(f".{kube.kubeconfig.name}.e2e").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pytest.exit(f"another run of these tests has the cluster of {kube.kubeconfig}", returncode=2)
    installed = Installation(kube, places.BIN / "helm" if own_cluster else Path(shutil.which("helm") or "helm"))
    installed.install()
    yield installed
    installed.uninstall()
    lock.close()


@pytest.fixture
def world(kube: Kube, installation: Installation, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of this test's own. After it nothing of its jobs may be left."""
    slug = request.node.name.removeprefix("test_").replace("_", "-").split("[")[0][:40].strip("-")
    world = World(kube, installation, f"t{next(_numbers)}-{slug}")
    world.open()
    yield world
    world.close()
