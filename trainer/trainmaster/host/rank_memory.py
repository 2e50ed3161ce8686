"""The memory of a process, its device and its container. Standard library only, because scripts are observed, too.

The memory of a process and its device is read in each step, so it costs microseconds. The container's memory is read by
its agent, once for all ranks, before each report.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster.contract.wire.progress_record import Progress

_PAGE = os.sysconf("SC_PAGE_SIZE")
_NO_LIMIT = 2**62  # version 1 tells the largest number of pages that it can count instead


def weigh(progress: Progress) -> None:
    """Write the memory that this process and its device use into `progress`."""
    fd = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        progress.rss_bytes = int(os.read(fd, 256).split()[1]) * _PAGE
    finally:
        os.close(fd)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    progress.rss_peak_bytes = max(progress.rss_peak_bytes, progress.rss_bytes, most)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        _weigh_device(progress, torch)


def _weigh_device(progress: Progress, torch: Any) -> None:
    """Write the memory that tensors use. What the allocator keeps in addition is returned before memory runs out."""
    tensors = torch.cuda.memory_stats_as_nested_dict().get("allocated_bytes", {}).get("all", {})
    progress.device_bytes = tensors.get("current", 0)
    progress.device_peak_bytes = max(progress.device_peak_bytes, tensors.get("peak", 0))
    if not progress.device_limit_bytes:
        progress.device_limit_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory


def of_process(pid: int) -> tuple[int, int]:
    """Return (bytes in use, peak bytes) of a process that does not report them; zeros if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            found = dict(line.split(b":", 1) for line in file if line.startswith((b"VmRSS:", b"VmHWM:")))
        return int(found[b"VmRSS"].split()[0]) * 1024, int(found[b"VmHWM"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0, 0


@dataclass(frozen=True)
class Cgroup:
    """The memory of a control group. `files` are usage, limit, and the entry of memory.stat for idle page cache."""

    folder: Path
    files: tuple[str, str, str]

    def used(self) -> int | None:
        """Return the bytes that count when memory runs out, without page cache, which the kernel takes back first."""
        usage, _, idle = self.files
        try:
            taken = int((self.folder / usage).read_text())
            stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
            return max(0, taken - int(stat.get(idle, 0)))
        except (OSError, ValueError):
            return None

    def limit(self) -> int | None:
        try:
            limit = (self.folder / self.files[1]).read_text().strip()
            return None if limit == "max" or int(limit) >= _NO_LIMIT else int(limit)
        except (OSError, ValueError):
            return None


_V1 = ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
_V2 = ("memory.current", "memory.max", "inactive_file")
_OOM_COUNTS = {_V1: "memory.oom_control", _V2: "memory.events"}
_SELF = Path("/proc/self")


@functools.cache
def container() -> Cgroup | None:
    """Return this process's control group, or the one around it with the lowest limit, if it can be read.

    Return None if none counts memory. The result is cached, because a container never changes its group.
    """
    return find(_SELF)


def find(process: Path) -> Cgroup | None:
    """Return `container` of the process whose folder in /proc is `process`."""
    groups = [group for group in _groups(process) if (group.folder / group.files[0]).exists()]
    limited = [(limit, i) for i, group in enumerate(groups) if (limit := group.limit()) is not None]
    return groups[min(limited)[1]] if limited else next(iter(groups), None)


def _groups(process: Path) -> list[Cgroup]:
    """Return the memory groups, innermost first. If both versions exist and version 1 is mounted, it counts memory."""
    for files, kind, option in ((_V1, "cgroup", "memory"), (_V2, "cgroup2", "")):
        if found := folders(process, kind, option):
            return [Cgroup(folder, files) for folder in found]
    return []


def folders(process: Path, kind: str, option: str) -> list[Path]:
    """Return the folders of a process's control group and of those around it, innermost first.

    The result is [] if no such hierarchy is mounted. `kind` is cgroup, with the controller `option` (version 1), or
    cgroup2, with "". `process` is its folder in /proc.
    """
    try:
        members = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError:
        return []
    path = next((m[2] for m in members if option in m[1].split(",") and (option or m[0] == "0")), None)
    for mount in mounts:
        # Mount point and root come before a list of optional fields that ends with "-", type and options after it.
        root, point, rest = mount[3], mount[4], mount[mount.index("-") + 1 :]
        if path is None or rest[0] != kind or option not in ("", *rest[2].split(",")):
            continue
        inside = os.path.relpath(path, root)
        # Some runtimes show a container its own group under a path that only the host knows.
        folder = Path(point, "" if inside.startswith("..") else inside)
        around = [folder, *folder.parents]
        return around[: around.index(Path(point)) + 1]
    return []


def oom_kills(process: Path = _SELF) -> int:
    """Return how many processes the kernel's out-of-memory killer has killed in this control group (cgroup v2 or v1).

    In a container the group is that of the container. Elsewhere, as in a run on one machine, it is a group below those
    of other programs. The kernel counts a kill in the group of the killed process, whichever group had no memory left.
    """
    place = _oom_count(process)
    try:
        lines = place.read_text().splitlines() if place is not None else []
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    except (OSError, ValueError):
        return 0


@functools.cache
def _oom_count(process: Path) -> Path | None:
    """Return the file with the count of the innermost group that has one. The result is cached as in `container`."""
    places = (group.folder / _OOM_COUNTS[group.files] for group in _groups(process))
    return next((place for place in places if place.exists()), None)
