"""The cluster that the tests run on, the operator in it, and a namespace for each test.

`E2E_CLUSTER`: `own` (the default: `python -m e2e.cluster` has it up), `kind` (`python -m e2e.kind`), or `current`
(whatever KUBECONFIG says, with the images at hand, and E2E_SHARED naming a folder that all nodes share with this
machine: tests that need one are skipped without). The tests never take the cluster down: `make e2e` does.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import machine as machine_room
from e2e.cluster import places
from e2e.installation import Installation
from e2e.kube import Kube
from e2e.machine import Machine, Site
from e2e.world import World

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "last: looks back at what all others did")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def site() -> Site:
    return machine_room.site(os.environ.get("E2E_CLUSTER") or "own")


@pytest.fixture(scope="session")
def machine(site: Site) -> Machine:
    if site.machine is None:
        pytest.skip("nodes and processes are within reach only on a cluster that was made here")
    return site.machine


@pytest.fixture(scope="session")
def kube(site: Site) -> Kube:
    if not site.kubeconfig.exists():
        pytest.fail(f"no cluster: {site.kubeconfig} is missing (`make cluster` starts one)")
    return Kube(site.kubeconfig, _program("kubectl"))


@pytest.fixture(scope="session")
def installation(kube: Kube) -> Iterator[Installation]:
    """The chart, installed once for all tests, and uninstalled after them. Two runs would take it from each other."""
    lock = kube.kubeconfig.with_name(f".{kube.kubeconfig.name}.e2e").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pytest.exit(f"another run of these tests has the cluster of {kube.kubeconfig}", returncode=2)
    installed = Installation(kube, _program("helm"))
    installed.install()
    yield installed
    installed.uninstall()
    lock.close()


def _program(name: str) -> Path:
    """The one that was built here, else the machine's."""
    built, found = places.BIN / name, shutil.which(name)
    if built.exists():
        return built
    if found is None:
        pytest.fail(f"{name} isn't on the PATH")
    return Path(found)


@pytest.fixture
def world(site: Site, kube: Kube, installation: Installation, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of this test's own. After it nothing of its jobs may be left."""
    slug = request.node.name.removeprefix("test_").replace("_", "-").split("[")[0][:40].strip("-")
    world = World(kube, installation, f"t{next(_numbers)}-{slug}", site)
    world.open()
    yield world
    world.close()
