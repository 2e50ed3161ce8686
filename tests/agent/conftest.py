from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tied
from tests.agent.fake_operator import Operator
from tests.agent.world import ROOT, World


@pytest.fixture(scope="session")
def machine_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One zygote for all tests of this process: torch is imported once."""
    path = tmp_path_factory.mktemp("zygote") / "z.sock"
    zygote = tied.popen(
        [sys.executable, "-m", "trainmaster.agent.zygote", "--socket", str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "trainer")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield path
    zygote.send_signal(signal.SIGTERM)
    zygote.wait(10)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(zygote: Path | None = None, **options: int) -> World:
        folder = tmp_path / f"world-{len(worlds)}"
        folder.mkdir()
        worlds.append(World(Operator(**options), folder, zygote))  # type: ignore[arg-type]
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
        world.operator.close()
