from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.matrix import Matrices


@pytest.fixture(scope="session")
def matrices() -> Iterator[Matrices]:
    """Crash matrices, each made once."""
    made = Matrices()
    yield made
    made.close()
