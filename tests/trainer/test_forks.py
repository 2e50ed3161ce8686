"""The process that makes calls for tests: what one call leaves does not reach the next one."""

from __future__ import annotations

import os

import pytest

from tests.trainer.ranks import Ranks

NAME = "WORLD_SIZE"


def become_a_rank() -> str | None:
    before = os.environ.get(NAME)
    os.environ[NAME] = "2"
    return before


@pytest.mark.processes
def test_a_call_finds_the_variables_that_were_there_before_any_call(ranks: Ranks) -> None:
    assert [ranks.call(become_a_rank) for _ in range(2)] == [None, None]
