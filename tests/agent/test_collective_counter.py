"""Which collectives count as those of a rank, with a stand-in for torch's process groups."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from trainmaster.contract.wire import ProgressRecord
from trainmaster.rank import collective_counter


class Work:
    def wait(self) -> None: ...


class ProcessGroup:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return self.ranks

    def allreduce(self) -> None: ...


def test_collectives_of_a_part_of_the_world_and_of_forked_workers_are_not_those_of_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers may have a world of their own, of the same size. They share the memory of the record."""
    monkeypatch.setattr(collective_counter, "_entered", 0)
    classes = {kind.__name__: type(kind.__name__, (kind,), dict(vars(kind))) for kind in (ProcessGroup, Work)}
    record = ProgressRecord.create(1, 0)
    collective_counter.watch(SimpleNamespace(**classes), record, world_size=4)
    world, part = classes["ProcessGroup"](4), classes["ProcessGroup"](2)
    world.allreduce()
    part.allreduce()
    pid = os.fork()
    if pid == 0:
        for _ in range(3):
            world.allreduce()
        os._exit(0)
    os.waitpid(pid, 0)
    assert record.read().collectives == 1
    world.allreduce()
    assert record.read().collectives == 2
    record.close()
