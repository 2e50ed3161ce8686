"""What a pod uses, as the kernel and the driver tell it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.agent.test_memory import process, written
from trainmaster.host import pod_usage_meter
from trainmaster.host.pod_usage_meter import (
    Accelerators,
    RankProcesses,
    UsageMeter,
    find_cpu_counter,
    look,
    network_bytes,
)

_DEVICES = """Inter-|   Receive           |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo: 5000 10 0 0 0 0 0 0 5000 10 0 0 0 0 0 0
  eth0:{received} 10 0 0 0 0 0 0 {sent} 10 0 0 0 0 0 0
  ib0: 1000 10 0 0 0 0 0 0 2000 10 0 0 0 0 0 0
"""


def network(proc: Path, received: int, sent: int) -> None:
    (proc / "net").mkdir(parents=True, exist_ok=True)
    (proc / "net" / "dev").write_text(_DEVICES.format(received=received, sent=sent))


def test_all_network_devices_count_but_the_loopback(tmp_path: Path) -> None:
    network(tmp_path, 100, 200)
    assert network_bytes(tmp_path) == (1100, 2200)
    assert network_bytes(tmp_path / "nowhere") is None


def test_cpu_comes_from_the_control_group_of_either_version(tmp_path: Path) -> None:
    second = tmp_path / "v2"
    (second / "pod").mkdir(parents=True)
    (second / "pod" / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\n")
    own = process(tmp_path / "a", "0::/pod\n", f"/ {second} rw - cgroup2 cgroup2 rw")
    counter = find_cpu_counter(own)
    assert counter is not None
    assert counter() == 2.5
    first = tmp_path / "v1"
    (first / "pod").mkdir(parents=True)
    (first / "pod" / "cpuacct.usage").write_text("1500000000\n")
    own = process(tmp_path / "b", "4:cpu,cpuacct:/pod\n", f"/ {first} rw - cgroup cgroup rw,cpu,cpuacct")
    counter = find_cpu_counter(own)
    assert counter is not None
    assert counter() == 1.5
    assert find_cpu_counter(tmp_path / "nowhere") is None


def test_a_meter_counts_from_its_own_beginning(tmp_path: Path) -> None:
    group = tmp_path / "group"
    written(group, cpu__stat="usage_usec 9000000\n")
    process(tmp_path / "self", "0::/\n", f"/ {group} rw - cgroup2 cgroup2 rw")
    network(tmp_path, 100, 200)
    meter = UsageMeter(one_machine=False, proc=tmp_path)
    written(group, cpu__stat="usage_usec 10500000\n")
    network(tmp_path, 150, 260)
    found = meter.read([])
    assert (found.cpu_s, found.received_bytes, found.sent_bytes) == (1.5, 50, 60)


def test_on_one_machine_ranks_are_counted_and_the_network_is_nobodys(tmp_path: Path) -> None:
    group = tmp_path / "group"
    written(group, cpu__stat="usage_usec 9000000\n")
    process(tmp_path / "self", "0::/\n", f"/ {group} rw - cgroup2 cgroup2 rw")
    network(tmp_path, 100, 200)
    rank(tmp_path, 7, 300)
    meter = UsageMeter(one_machine=True, proc=tmp_path)
    found = meter.read([7])
    assert (found.cpu_s, found.received_bytes, found.sent_bytes) == (300 / os.sysconf("SC_CLK_TCK"), None, None)


def rank(proc: Path, pid: int, ticks: int, began: int = 1) -> None:
    """A process of which a child has ended; its name is hard to read."""
    numbers = [*"S1111111111", *map(str, (ticks - 30, 10, 15, 5)), *"2010", str(began), "0"]
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b (c) {' '.join(numbers)}\n")


def test_ranks_that_ended_still_count_and_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    ranks = RankProcesses(tmp_path)
    rank(tmp_path, 7, 2 * ticks)
    rank(tmp_path, 8, 3 * ticks)
    assert ranks.cpu_s([7, 8]) == 5
    assert ranks.cpu_s([8]) == 5
    rank(tmp_path, 7, ticks, began=9)
    assert ranks.cpu_s([7, 8]) == 6
    assert ranks.cpu_s([]) == 6
    assert ranks.cpu_s([99]) == 6


@pytest.mark.processes
def test_a_real_process_is_seen_to_compute() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        meter = UsageMeter(one_machine=True)
        used_s = meter.read([child.pid]).cpu_s
        child.communicate(b"\n")
    assert used_s is not None
    assert 0.25 <= used_s <= 30
    assert meter.read([child.pid]).cpu_s == used_s


class NoAnswer(Exception):
    pass


class Driver:
    """pynvml with three devices, of which the last, a slice of a device, can't tell how busy it is."""

    NVMLError = NoAnswer

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= 3:
            raise NoAnswer
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(used=100 * (device + 1))

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        if device == 2:
            raise NoAnswer
        return SimpleNamespace(gpu=20 * (device + 1))


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, (pytest.approx(0.3), 600)),
        ("1", (pytest.approx(0.4), 200)),
        ("GPU-0,1", (pytest.approx(0.3), 300)),
        ("2", (None, 300)),
        ("7", (None, None)),
        ("", (None, None)),
    ],
)
def test_the_visible_accelerators_tell_what_they_can(visible: str | None, found: tuple[float, int]) -> None:
    assert look(Driver(), visible) == found


def test_a_driver_that_does_not_answer_any_more_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accelerators, "_watch", lambda self: None)
    seen = Accelerators(Driver())
    assert seen.latest() == (None, None)
    now = pod_usage_meter.time.monotonic()
    seen._latest = (now, 0.5, 7)
    assert seen.latest() == (0.5, 7)
    seen._latest = (now - 31, 0.5, 7)
    assert seen.latest() == (None, None)
