"""How much memory processes and containers take, as the kernel tells it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.agent.world import World
from trainmaster.contract.wire.progress_record import Progress, ProgressRecord
from trainmaster.host import rank_memory

MIB = 2**20


def written(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def process(folder: Path, cgroup: str, *mounts: str) -> Path:
    """A made-up folder of /proc."""
    written(folder, cgroup=cgroup)
    (folder / "mountinfo").write_text("".join(f"{30 + i} 20 0:30 {m}\n" for i, m in enumerate(mounts)))
    return folder


def v2(folder: Path, limit: str = "max", taken: int = 100 * MIB, idle: int = 30 * MIB) -> None:
    stat = f"anon {taken - idle}\ninactive_file {idle}\n"
    written(folder, memory__current=f"{taken}\n", memory__max=f"{limit}\n", memory__stat=stat)


def v1(folder: Path, limit: int = 9223372036854771712, taken: int = 100 * MIB, idle: int = 30 * MIB) -> None:
    written(folder, memory__usage_in_bytes=f"{taken}\n", memory__limit_in_bytes=f"{limit}\n")
    written(folder, memory__stat=f"inactive_file 1\ntotal_inactive_file {idle}\n")


def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path) -> None:
    v2(tmp_path / "cgroup", limit=str(2**30))
    group = rank_memory.find(process(tmp_path / "proc", "0::/\n", f"/ {tmp_path}/cgroup rw - cgroup2 cgroup rw"))
    assert group is not None
    assert (group.used(), group.limit()) == (70 * MIB, 2**30)


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    v2(tmp_path / "cgroup")
    group = rank_memory.find(process(tmp_path / "proc", "0::/\n", f"/ {tmp_path}/cgroup rw - cgroup2 cgroup rw"))
    assert group is not None
    assert (group.used(), group.limit()) == (70 * MIB, None)


def test_the_lowest_limit_around_a_process_is_the_one_that_ends_it(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    v2(root / "slice", limit=str(3 * 2**30))
    v2(root / "slice" / "pod", limit=str(2**30), taken=500 * MIB)
    v2(root / "slice" / "pod" / "container", limit=str(2**31))
    # Its root group has none of these files.
    group = rank_memory.find(
        process(tmp_path / "proc", "0::/slice/pod/container\n", f"/ {root} rw - cgroup2 cgroup rw")
    )
    assert group == rank_memory.Cgroup(root / "slice" / "pod", rank_memory._V2)


def test_the_first_version_is_read_where_it_counts_memory(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    v1(root / "memory" / "job", limit=2**30)
    (root / "unified").mkdir()
    found = process(
        tmp_path / "proc",
        "9:cpu:/other\n4:memory:/docker/abc/job\n0::/\n",
        f"/ {root}/cpu rw,relatime - cgroup cgroup rw,cpu",
        f"/docker/abc {root}/memory rw,relatime shared:9 - cgroup cgroup rw,memory",
        f"/ {root}/unified rw - cgroup2 cgroup2 rw",
    )
    group = rank_memory.find(found)
    assert group == rank_memory.Cgroup(root / "memory" / "job", rank_memory._V1)
    assert (group.used(), group.limit()) == (70 * MIB, 2**30)
    v1(root / "memory" / "job")
    assert group.limit() is None, "the first version tells a huge number instead"


def test_a_path_that_only_the_host_knows_is_the_mount_itself(tmp_path: Path) -> None:
    v2(tmp_path / "cgroup", limit=str(2**30))
    mount = f"/kubepods/pod1 {tmp_path}/cgroup rw - cgroup2 cgroup rw"
    group = rank_memory.find(process(tmp_path / "proc", "0::/system.slice/containerd\n", mount))
    assert group == rank_memory.Cgroup(tmp_path / "cgroup", rank_memory._V2)


def test_where_nothing_counts_memory_there_is_no_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    assert rank_memory.find(process(tmp_path / "a", "0::/\n", f"/ {tmp_path}/cgroup rw - cgroup2 cgroup rw")) is None
    assert rank_memory.find(process(tmp_path / "b", "", "/ / rw - ext4 /dev/vda rw")) is None
    assert rank_memory.find(tmp_path / "nobody") is None
    gone = rank_memory.Cgroup(tmp_path, rank_memory._V2)
    assert (gone.used(), gone.limit()) == (None, None)


def test_a_process_weighs_what_it_has_touched_and_remembers_the_most() -> None:
    before, after = Progress(), Progress()
    rank_memory.weigh(before)
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"x" * len(block))
        rank_memory.weigh(after)
    assert after.rss_bytes - before.rss_bytes > 56 * MIB
    rank_memory.weigh(after)
    assert after.rss_bytes < before.rss_bytes + 56 * MIB
    assert after.rss_peak_bytes >= before.rss_bytes + 56 * MIB
    assert after.device_bytes == after.device_limit_bytes == 0


def test_a_process_that_tells_nothing_is_weighed_from_outside() -> None:
    code = "import sys; x = bytearray(64 << 20); print(flush=True); del x; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    child.stdout.readline()
    now, most = rank_memory.of_process(child.pid)
    assert most - now > 56 * MIB
    child.communicate()
    assert rank_memory.of_process(child.pid) == (0, 0)


def test_a_device_tells_what_tensors_take(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"allocated_bytes": {"all": {"current": 5, "peak": 9}}, "reserved_bytes": {"all": {"current": 20}}}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        memory_stats_as_nested_dict=lambda: stats,
        current_device=lambda: 1,
        get_device_properties=lambda device: SimpleNamespace(total_memory=80 + device),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    progress = Progress()
    rank_memory.weigh(progress)
    assert (progress.device_bytes, progress.device_peak_bytes, progress.device_limit_bytes) == (5, 9, 81)
    stats["allocated_bytes"]["all"].update(current=3, peak=4)  # somebody has reset the peak
    rank_memory.weigh(progress)
    assert (progress.device_bytes, progress.device_peak_bytes) == (3, 9)
    stats.clear()  # an allocator that doesn't count
    rank_memory.weigh(progress)
    assert (progress.device_bytes, progress.device_peak_bytes) == (0, 9)


def test_the_record_of_an_older_rank_has_no_peaks() -> None:
    record = ProgressRecord.create(1, 0)
    record.write(Progress(rss_bytes=7, eval_total_ns=5, rss_peak_bytes=8, device_peak_bytes=9, device_limit_bytes=10))
    older = ProgressRecord.open(os.dup(record.fd))
    told = older.read()
    assert (told.rss_peak_bytes, told.device_peak_bytes, told.device_limit_bytes) == (8, 9, 10)
    # An older one fills the record with zeros behind what it knows, as a new record has them.
    new = ProgressRecord.create(1, 0)
    fresh = new.read()
    assert (fresh.rss_peak_bytes, fresh.device_peak_bytes, fresh.device_limit_bytes) == (0, 0, 0)
    assert told.eval_total_ns == 5
    for made in (record, older, new):
        made.close()


@pytest.mark.processes
def test_an_agent_tells_of_its_ranks_and_of_the_container(
    make_world: Callable[..., World], machine_zygote: Path
) -> None:
    world = make_world(machine_zygote, ranks=2)
    body = "import os, time\nif os.environ['RANK'] == '1': x = bytearray(200 << 20); del x\ntime.sleep(3600)"
    world.start(["python", world.script(body)])

    def told() -> bool:
        report = world.operator.agents[0].report
        ranks = {rank.rank: rank for rank in report.ranks} if report is not None else {}
        return len(ranks) == 2 and ranks[1].rss_peak_bytes > ranks[1].rss_bytes + 150 * MIB

    world.operator.wait_for(told, "the peak of rank 1")
    report = world.operator.agents[0].report
    assert report is not None
    assert 0 < report.ranks[0].rss_bytes <= report.ranks[0].rss_peak_bytes < report.ranks[1].rss_peak_bytes
    group = rank_memory.container()
    if group is not None:  # they live in ours
        assert report.container_bytes >= max(0, report.ranks[0].rss_bytes - 64 * MIB)
        assert report.container_limit_bytes == (group.limit() or 0)
