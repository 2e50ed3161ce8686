"""What all tests share: no test fails for the time that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.e2e.warm_runs import warm_runs  # noqa: F401  a fixture
from tests.faked_cuda import faked_cuda  # noqa: F401  a fixture
from tests.machine_zygote import machine_zygote  # noqa: F401  a fixture

pytest_plugins = ("tests.suite.plugin",)

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of all workers of this run, for what one of them computes for all."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if hasattr(request.config, "workerinput") else folder) / "common"
    folder.mkdir(exist_ok=True)
    return folder
