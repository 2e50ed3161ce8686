"""A set of whole cores for each of several ranks of a pod, from one NUMA node if possible.

Without it the kernel moves threads of all ranks over all cores of the pod. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmaster.contract.wire import environment

_SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True)
class Core:
    node: int  # of memory
    cpus: tuple[int, ...]  # its threads, as the kernel numbers them


def cores(allowed: Collection[int], system: Path = _SYSTEM) -> list[Core]:
    """Return the cores of these CPUs, node by node. Without information in /sys, each CPU is a core of node 0."""
    node_of = {
        cpu: int(path.parent.name.removeprefix("node"))
        for path in system.glob("node/node[0-9]*/cpulist")
        for cpu in _listed(path)
    }
    found = set()
    for cpu in allowed:
        siblings = _listed(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") & {*allowed}
        found.add(Core(node_of.get(cpu, 0), tuple(sorted(siblings | {cpu}))))
    return sorted(found, key=lambda core: (core.node, core.cpus))


def shares(cores: Sequence[Core], ranks: int) -> list[list[int]]:
    """Return the CPUs of each rank, of the same number of cores for each.

    Raises ValueError, a sentence, if there are too few cores.
    """
    if len(cores) < ranks:
        raise ValueError(f"there are {len(cores)} cores for {ranks} ranks, and each needs one of its own")
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    # With fewer ranks than nodes each has cores of several.
    groups = [[*cores]] if ranks < len(nodes) else [*nodes.values()]
    each = max(n for n in range(1, len(cores) // ranks + 1) if sum(len(group) // n for group in groups) >= ranks)
    parts = [group[i : i + each] for group in groups for i in range(0, len(group) - each + 1, each)]
    return [[cpu for core in part for cpu in core.cpus] for part in parts[:ranks]]


def share(cpus: int, ranks: int, index: int) -> list[int]:
    """Return the CPUs of one of this pod's ranks. `cpus` is the number of CPUs that the pod may use.

    Raises ValueError, a sentence, if several pods may have the same cores, because their pinned ranks would share a
    few.
    """
    allowed = os.sched_getaffinity(0)
    if cpus < len(allowed):
        raise ValueError(
            f"the pod may count on {cpus} of the {len(allowed)} CPUs that it sees, and which ones isn't settled; the "
            f"static CPU manager policy of its node would settle it"
        )
    return shares(cores(allowed), ranks)[index]


def pin(variables: Mapping[str, str]) -> None:
    """Pin this process, and all threads that it will have, to the CPUs in its environment, if there are any."""
    cpus = variables.get(environment.CPUS)
    if cpus:
        with contextlib.suppress(OSError):  # the container has lost all of them meanwhile: it runs where it may
            os.sched_setaffinity(0, map(int, cpus.split(",")))


def _listed(path: Path) -> set[int]:
    """Return the numbers in a kernel file such as 0-3,8, or an empty set without the file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    return {cpu for part in text.split(",") if part for cpu in _range(part.split("-"))}


def _range(ends: Sequence[str]) -> Iterable[int]:
    return range(int(ends[0]), int(ends[-1]) + 1)
