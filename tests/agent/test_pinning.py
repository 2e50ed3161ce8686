"""Which cores ranks are pinned to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import World
from trainmaster.contract.wire import environment
from trainmaster.host import pinning
from trainmaster.host.pinning import Core, cores, shares


def machine(folder: Path, nodes: list[str], siblings: dict[int, str]) -> Path:
    """/sys/devices/system of a machine: CPUs of each node, and of each CPU's core."""
    for number, cpus in enumerate(nodes):
        (folder / f"node/node{number}").mkdir(parents=True)
        (folder / f"node/node{number}/cpulist").write_text(f"{cpus}\n")
    for cpu, listed in siblings.items():
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{listed}\n")
    return folder


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two nodes with four cores each, of two threads each; node 0: CPUs 0-3 and 8-11."""
    siblings = {cpu: f"{cpu % 8},{cpu % 8 + 8}" for cpu in range(16)}
    return machine(tmp_path, ["0-3,8-11", "4-7,12-15"], siblings)


def test_threads_of_a_core_are_together_and_cores_in_order_of_their_nodes(two_sockets: Path) -> None:
    found = cores(range(16), two_sockets)
    assert found == [Core(i // 4, (i, i + 8)) for i in range(8)]


def test_only_what_the_pod_may_use_counts(two_sockets: Path) -> None:
    assert cores({1, 2, 9}, two_sockets) == [Core(0, (1, 9)), Core(0, (2,))]


def test_where_sys_says_nothing_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert cores({3, 1}, tmp_path) == [Core(0, (1,)), Core(0, (3,))]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, [[0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]]),
        (2, [[0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]]),
        # Never across nodes: with two cores each, one is left over in both.
        (3, [[0, 8, 1, 9], [2, 10, 3, 11], [4, 12, 5, 13]]),
        (8, [[i, i + 8] for i in range(8)]),
    ],
)
def test_ranks_have_whole_cores_of_one_node(two_sockets: Path, ranks: int, expected: list[list[int]]) -> None:
    assert shares(cores(range(16), two_sockets), ranks) == expected


def test_fewer_ranks_than_nodes_have_cores_of_several() -> None:
    four = [Core(node, (2 * node + i,)) for node in range(4) for i in range(2)]
    assert shares(four, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_too_few_cores_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="there are 2 cores for 3 ranks, and each needs one of its own"):
        shares([Core(0, (0,)), Core(0, (1,))], 3)


def test_cores_that_other_pods_may_have_too_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    with pytest.raises(ValueError, match=r"^the pod may count on 4 of the 64 CPUs that it sees"):
        pinning.share(4, 2, 0)


@pytest.mark.processes
def test_ranks_of_a_pod_run_on_cores_of_their_own_and_without_it_on_all(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    """In a pod with fewer cores than ranks they run on all, and the agent says why."""
    all_cpus = sorted(os.sched_getaffinity(0))
    source = "import os\nprint('cpus', sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], flush=True)\n"
    world = make_world(machine_zygote, ranks=2)
    world.start(["python", world.script(source)], **{environment.PINNING: "1"})
    assert world.wait() == 0
    expected = [all_cpus, all_cpus]
    if len(cores(all_cpus)) >= 2:
        expected = [sorted(cpus) for cpus in shares(cores(all_cpus), 2)]
    else:
        assert "ranks aren't pinned to cores: there are 1 cores for 2 ranks" in world.log()
    for rank, cpus in enumerate(expected):
        assert f"[rank {rank}] cpus {cpus} " in world.log()

    plain = make_world(machine_zygote, ranks=2)
    plain.start(["python", plain.script(source)])
    assert plain.wait() == 0
    assert f"[rank 1] cpus {all_cpus} " in plain.log()
