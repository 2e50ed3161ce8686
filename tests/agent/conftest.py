from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.fake_operator import Operator
from tests.agent.world import World


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
