"""Which worker gets which group when, and that tests which need the machine alone get it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from tests.suite.order import ALONE
from tests.suite.scheduling import LongestFirst


class Worker:
    """A worker as the scheduler sees it: what it was sent, and whether it was told to end."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, positions: Sequence[int]) -> None:
        self.sent += positions

    def shutdown(self) -> None:
        self.shutting_down = True


class World:
    """Two workers that have collected tests of the given groups, in this order; their names are their positions."""

    def __init__(self, folder: Path, groups: Sequence[str]) -> None:
        ids = [f"tests/a.py::test_{position}" for position in range(len(groups))]
        option = SimpleNamespace(loadscopereorder=False, maxprocesses=None, tx=["2*popen"], px=[], rsyncdir=[])
        config = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
        self.workers = [Worker("gw0"), Worker("gw1")]
        self.scheduler = LongestFirst(config, None, folder)  # type: ignore[arg-type]
        for worker in self.workers:
            (folder / f"{worker.gateway.id}.json").write_text(json.dumps(dict(zip(ids, groups, strict=True))))
            self.scheduler.add_node(worker)
        for worker in self.workers:
            self.scheduler.add_node_collection(worker, ids)
        self.scheduler.schedule()

    def finish(self, number: int, position: int) -> None:
        self.scheduler.mark_test_complete(self.workers[number], position)

    def end(self, number: int) -> None:
        """The worker has ended, as it was told to."""
        assert self.workers[number].shutting_down
        assert self.scheduler.remove_node(self.workers[number]) is None

    @property
    def sent(self) -> list[list[int]]:
        return [worker.sent for worker in self.workers]

    @property
    def ending(self) -> list[bool]:
        return [worker.shutting_down for worker in self.workers]


def test_workers_get_the_groups_in_the_order_of_the_collection(tmp_path: Path) -> None:
    world = World(tmp_path, ["a", "b", "b", "b", "c", "d"])
    # gw1 has more than two tests left, so it gets no second group yet.
    assert world.sent == [[0, 4], [1, 2, 3]]
    world.finish(0, 0)
    assert world.sent == [[0, 4, 5], [1, 2, 3]]
    assert world.scheduler.has_pending


def test_tests_that_need_the_machine_alone_go_to_the_last_worker_after_the_other_has_ended(tmp_path: Path) -> None:
    world = World(tmp_path, ["a", "b", "c", "d", ALONE, ALONE])
    assert world.sent == [[0, 2], [1, 3]]
    world.finish(0, 0)
    assert world.ending == [False, False]
    world.finish(1, 1)
    assert world.ending == [False, True]
    world.finish(1, 3)
    # gw0 has begun nothing more: it waits to know what comes after its last test.
    assert world.sent == [[0, 2], [1, 3]]
    assert not world.scheduler.tests_finished
    world.end(1)
    assert world.sent == [[0, 2, 4, 5], [1, 3]]
    for position in (2, 4, 5):
        world.finish(0, position)
    assert world.scheduler.tests_finished
    assert world.ending == [True, True]


def test_with_fewer_groups_than_workers_they_still_run_alone(tmp_path: Path) -> None:
    world = World(tmp_path, ["a", ALONE])
    assert world.sent == [[0], []]
    world.end(1)
    assert world.sent == [[0, 1], []]


def test_only_tests_that_need_the_machine_alone_need_no_second_worker(tmp_path: Path) -> None:
    world = World(tmp_path, [ALONE, ALONE])
    assert world.sent == [[0, 1], []]
    assert world.ending == [True, True]


def test_what_a_dead_worker_left_runs_before_those_that_need_the_machine_alone(tmp_path: Path) -> None:
    world = World(tmp_path, ["a", "b", "c", "d", ALONE])
    assert world.scheduler.remove_node(world.workers[1]) == "tests/a.py::test_1"
    for position in (0, 2):
        world.finish(0, position)
    assert sorted(world.sent[0][:3]) == [0, 2, 3]  # but not the test during which it died: it might hang again
    assert world.sent[0][3:] == [4]


def test_without_the_alone_group_a_worker_ends_when_nothing_is_left(tmp_path: Path) -> None:
    world = World(tmp_path, ["a", "b", "c"])
    assert world.sent == [[0, 2], [1]]
    world.finish(1, 1)
    assert world.ending[1]
