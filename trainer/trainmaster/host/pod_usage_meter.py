"""What this pod uses: CPU from its control group, bytes from its network devices, accelerators from NVML.

Counters begin with the agent. If all pods of a job are processes of one machine, control group and network are those of
the machine: then the CPU time is counted by the ranks' processes, and the network is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainmaster.contract.wire import Usage
from trainmaster.host import rank_memory

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_S = 5.0  # how often accelerators are looked at
_FRESH_S = 30.0  # a driver that has not answered for so long tells nothing any more


class UsageMeter:
    """Measures the usage since this object was made. With `one_machine`, pods are processes of this machine."""

    def __init__(self, *, one_machine: bool, proc: Path = _PROC) -> None:
        self._proc = proc
        self._processes = RankProcesses(proc)
        self._cpu = None if one_machine else find_cpu_counter(proc / "self")
        self._cpu_from = self._cpu() if self._cpu is not None else None
        self._network_from = None if one_machine else network_bytes(proc)
        self._accelerators = Accelerators.found()

    def read(self, ranks: Iterable[int]) -> Usage:
        """Return the usage. `ranks` are the process ids of the ranks that run now."""
        by_process = self._processes.cpu_s(ranks)
        group = self._cpu() if self._cpu is not None else None
        cpu_s = by_process if group is None or self._cpu_from is None else max(0.0, group - self._cpu_from)
        network = network_bytes(self._proc) if self._network_from is not None else None
        received, sent = network if network is not None else (None, None)
        if self._network_from is not None and received is not None and sent is not None:
            received, sent = max(0, received - self._network_from[0]), max(0, sent - self._network_from[1])
        ratio, taken = self._accelerators.latest() if self._accelerators is not None else (None, None)
        return Usage(round(cpu_s, 3), received, sent, ratio, taken)


class RankProcesses:
    """The CPU seconds of processes and of their children that have ended. Processes that have ended still count."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._running: dict[tuple[int, int], float] = {}  # (pid, start time in ticks) -> seconds
        self._ended_s = 0.0

    def cpu_s(self, pids: Iterable[int]) -> float:
        now = dict(filter(None, (self._of(pid) for pid in pids)))
        self._ended_s += sum(seconds for process, seconds in self._running.items() if process not in now)
        self._running = now
        return self._ended_s + sum(now.values())

    def _of(self, pid: int) -> tuple[tuple[int, int], float] | None:
        try:
            # The name of the program, in brackets, may hold anything.
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return (pid, int(fields[19])), sum(map(int, fields[11:15])) / _TICKS
        except (OSError, ValueError, IndexError):
            return None


def find_cpu_counter(process: Path) -> Callable[[], float | None] | None:
    """Return a function that reads the CPU seconds of this process's control group, or None if none counts them."""
    for folder in rank_memory.folders(process, "cgroup", "cpuacct"):
        if (counter := folder / "cpuacct.usage").exists():
            return lambda: _number(counter, "", 1e9)
    for folder in rank_memory.folders(process, "cgroup2", ""):
        if (stat := folder / "cpu.stat").exists():
            return lambda: _number(stat, "usage_usec", 1e6)
    return None


def network_bytes(proc: Path = _PROC) -> tuple[int, int] | None:
    """Return the bytes that all network devices except the loopback have received and sent; None if not readable."""
    try:
        lines = (proc / "net" / "dev").read_text().splitlines()[2:]
        devices = [(name.strip(), values.split()) for name, _, values in (line.partition(":") for line in lines)]
        counted = [(int(values[0]), int(values[8])) for name, values in devices if name != "lo"]
    except (OSError, ValueError, IndexError):
        return None
    return sum(received for received, _ in counted), sum(sent for _, sent in counted)


class Accelerators:
    """A thread that asks the driver at intervals, because a driver in trouble may not answer and the agent must not
    wait."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._latest: tuple[float, float | None, int | None] = (float("-inf"), None, None)
        threading.Thread(target=self._watch, name="accelerators", daemon=True).start()

    @classmethod
    def found(cls) -> Accelerators | None:
        """Return the thread's object, or None if the package pynvml is not installed here."""
        if importlib.util.find_spec("pynvml") is None:
            return None
        try:
            return cls(importlib.import_module("pynvml"))
        except ImportError:
            return None

    def latest(self) -> tuple[float | None, int | None]:
        """Return (average utilization from 0 to 1, bytes of memory in use), with None for values that are not known."""
        at, ratio, taken = self._latest
        return (ratio, taken) if time.monotonic() - at < _FRESH_S else (None, None)

    def _watch(self) -> None:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:  # no driver: there is nothing to tell
            return
        while True:
            self._latest = (time.monotonic(), *look(self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES")))
            time.sleep(_LOOK_S)


def look(nvml: Any, visible: str | None) -> tuple[float | None, int | None]:
    """Ask the driver about the devices that are visible here. A device that can't tell one of the two is left out."""
    busy: list[float] = []
    taken: list[int] = []
    for device in _devices(nvml, visible):
        try:
            taken.append(int(nvml.nvmlDeviceGetMemoryInfo(device).used))
            busy.append(nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
        except nvml.NVMLError:
            continue
    return sum(busy) / len(busy) if busy else None, sum(taken) if taken else None


def _devices(nvml: Any, visible: str | None) -> list[Any]:
    """Return handles of the devices in CUDA_VISIBLE_DEVICES, or of all: a pod's runtime shows only its own devices."""
    found = []
    try:
        names = range(nvml.nvmlDeviceGetCount()) if visible is None else visible.split(",")
        for name in names:
            text = str(name).strip()
            if text.isdigit():
                found.append(nvml.nvmlDeviceGetHandleByIndex(int(text)))
            elif text.startswith("GPU-"):
                found.append(nvml.nvmlDeviceGetHandleByUUID(text))
    except nvml.NVMLError:
        return found
    return found


def _number(file: Path, name: str, unit: float) -> float | None:
    try:
        text = file.read_text()
        value = text if not name else dict(line.split() for line in text.splitlines())[name]
        return int(value) / unit
    except (OSError, ValueError, KeyError):
        return None
