"""What the ranks of a benchmark need of each other and of the machine."""

from __future__ import annotations

import os

import pytest

from benchmarks import ports
from benchmarks.turns import Turns


def test_a_rank_that_dies_is_told_while_the_others_wait_for_it() -> None:
    turns = Turns(2)
    dead, waiting = turns.ends(0), turns.ends(1)
    for end in dead:
        os.close(end)
    with pytest.raises(EOFError):
        turns.finished()  # the other rank has its end open and says nothing
    for end in waiting:
        os.close(end)
    turns.close()


def test_a_free_port_is_none_that_the_system_gives_away() -> None:
    first, _last = map(int, ports.RANGE.read_text().split())
    assert all(1024 <= ports.free_port() < first for _ in range(20))
