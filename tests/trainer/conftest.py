from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Worlds of real ranks; torch is imported once for all of them."""
    started = Ranks()
    yield started
    started.close()
