"""The cluster that the tests run on, the operator in it, and a namespace for each test.

`E2E_CLUSTER`: `own` (the default: `python -m e2e.cluster` has it up), `kind` (`python -m e2e.kind`), or `current`
(whatever KUBECONFIG says, with the images at hand, and E2E_SHARED naming a folder that all nodes share with this
machine: tests that need one are skipped without). The tests never take the cluster down: `make e2e` does.

`python -m e2e` runs two tests at a time, except those marked `exclusive`. pytest alone runs one after another.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from e2e import access
from e2e.installation import Installation
from e2e.kube import Kube
from e2e.machine import Machine, Site
from e2e.world import World

_numbers = itertools.count(1)
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "t")  # tests of two processes may run at once


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trial: has not been seen to pass on a cluster yet; CI leaves it out")
    config.addinivalue_line("markers", "exclusive: moves the operator, the API server or a node: runs alone")
    config.addinivalue_line("markers", "last: looks back at what all others did")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def site() -> Site:
    try:
        return access.chosen()
    except access.AccessError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(scope="session")
def machine(site: Site) -> Machine:
    if site.machine is None:
        pytest.skip("nodes and processes are within reach only on a cluster that was made here")
    return site.machine


@pytest.fixture(scope="session")
def kube(site: Site) -> Kube:
    try:
        return access.connect(site)
    except access.AccessError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(scope="session")
def installation(kube: Kube) -> Iterator[Installation]:
    """The chart, installed once for all tests."""
    try:
        with access.installation(kube) as installed:
            yield installed
    except access.AccessError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture
def world(site: Site, kube: Kube, installation: Installation, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of this test's own. After it nothing of its jobs may be left."""
    slug = request.node.name.removeprefix("test_").replace("_", "-").split("[")[0][:40].strip("-")
    world = World(kube, installation, f"{_WORKER}{next(_numbers)}-{slug}", site)
    world.open()
    yield world
    world.close()
