from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.ranks import Ranks, shared


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """Worlds of real ranks; torch is imported once for all of them."""
    return shared()


@pytest.fixture(scope="session")
def compiling_ranks(ranks: Ranks) -> Ranks:
    """The same; what compiles is imported once, too."""
    ranks.preload_compiler()
    return ranks


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("".join(f"the number {n} is followed by {n + 1}\n" for n in range(2000)))
    return folder
