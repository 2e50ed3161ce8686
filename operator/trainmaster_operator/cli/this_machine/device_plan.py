"""Which CUDA devices of this machine a run gets. `cuda_devices` finds and locks them; this module decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmaster.contract.config import Device as Asked
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.api.validation.device_count import NVIDIA
from trainmaster_operator.api.validation.problem import Problem, shown
from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.local.pod_cuda_devices import VISIBLE
from trainmaster_operator.planning.facts.counted_nouns import counted

_DEVICE = ("spec", "training", "device")
_RESOURCES = ("spec", "workers", "template", "spec", "containers", 0, "resources")


class NoDevices(Exception):
    """The run asks for devices that it cannot get."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Device:
    """A CUDA device. `name`: its name in CUDA_VISIBLE_DEVICES. `uuid`: its identity, whatever its name."""

    name: str
    uuid: str


@dataclass(frozen=True)
class Need:
    """The devices that a run asks for.

    `least`: with fewer devices it computes on the CPU. `most`: it cannot use more. `each`: number of devices of each
    pod, which then counts as a node; 0: all ranks see all devices. `explicit`: the template gives the number. `who`:
    who needs them, in words.
    """

    least: int
    most: int
    each: int
    who: str
    asked: Asked = "Auto"
    explicit: bool = False


@dataclass(frozen=True)
class DevicePlan:
    """The devices that a run gets. `names`: (): none; None: pods see what this process sees. `words`: a message for
    people, or "". `each`: as in Need."""

    names: tuple[str, ...] | None = None
    words: str = ""
    each: int = 0

    def news(self) -> News:
        """Return the news about the devices of the run."""
        return News("devices", self.words, Tone.PLAIN if self.names else Tone.WARNING)


def need(spec: JobSpec, *, pods_as_nodes: bool = False) -> Need | None:
    """Return what the job needs; None if its template itself says which devices its pods see. Raise NoDevices."""
    workers = spec.workers
    if any(variable.get("name") == VISIBLE for variable in spec.container().get("env") or []):
        return None
    asked = spec.training.device if spec.training is not None else "Auto"
    explicit = _of_template(spec)
    pods, most = workers.replicas, workers.max or workers.replicas
    if explicit is None and not pods_as_nodes:
        ranks = workers.ranksPerPod
        return Need(pods * ranks, most * ranks, 0, f"for {counted(pods * ranks, 'rank')}", asked)
    each = workers.ranksPerPod if explicit is None else explicit
    pods, most = pods + workers.spares, most + workers.spares
    who = f"for {counted(pods, 'pod')} with {each} each"
    return Need(pods * each, most * each, each, who, asked, explicit is not None)


def _of_template(spec: JobSpec) -> int | None:
    """Return how many devices the template asks for; None if it does not say. Raise NoDevices."""
    resources = spec.container().get("resources")
    for kind in ("limits", "requests"):
        amounts = resources.get(kind) if isinstance(resources, dict) else None
        given = amounts.get(NVIDIA) if isinstance(amounts, dict) else None
        if given is not None:
            if not str(given).isdecimal():
                words = f"a whole number is expected, not {shown(given)}"
                raise NoDevices(Problem((*_RESOURCES, kind, NVIDIA), words))
            return int(given)
    return None


def named(uuids: Sequence[str], visible: str | None) -> list[Device]:
    """Return the devices of a process that has `visible` in CUDA_VISIBLE_DEVICES.

    CUDA reads it as numbers, UUIDs or their beginnings. An unknown name hides everything after it, and a device that is
    named twice hides all devices. `uuids`: of the machine's devices, in their order.
    """
    if visible is None:
        return [Device(str(number), uuid) for number, uuid in enumerate(uuids)]
    found: list[Device] = []
    for name in visible.split(","):
        uuid = _uuid(uuids, name.strip())
        if uuid is None:
            break
        found.append(Device(name.strip(), uuid))
    return found if len({device.uuid for device in found}) == len(found) else []


def _uuid(uuids: Sequence[str], name: str) -> str | None:
    if name.isdigit():
        return uuids[int(name)] if int(name) < len(uuids) else None
    if name.startswith("MIG-"):
        return name  # It is a part of a device, which is not in the list.
    matching = [uuid for uuid in uuids if uuid.startswith(name)] if name.startswith("GPU-") else []
    return matching[0] if len(matching) == 1 else None


def _shortage(need: Need, present: int, free: int) -> str:
    """Return in words how many devices there are, and for whom. `free`: the number of those that no other run holds."""
    if present == free:
        return f"there {'is' if free == 1 else 'are'} {counted(free, 'CUDA device')} here {need.who}"
    there = f"the {counted(present, 'CUDA device')} here"
    return f"other runs hold {present - free} of {there}, which leaves {free} {need.who}"


def decide(need: Need | None, present: Sequence[Device] | None, free: Sequence[Device]) -> DevicePlan:
    """Return what a run gets. Raise NoDevices if it asks for devices that it cannot get.

    `present`: the devices that this process sees; None if unknown. `free`: those of them that no other run holds, at
    most need.most.
    """
    if need is not None and need.asked == "MPS":
        words = "MPS cannot be used, because losses are summed in float64, which MPS does not have; use CPU"
        raise NoDevices(Problem(_DEVICE, words))
    if need is None or present is None:
        return DevicePlan(each=need.each if need is not None else 0)
    if need.asked == "CPU" or not need.most:
        return DevicePlan(() if present else None, each=need.each)
    if need.least <= len(free):
        names = tuple(device.name for device in free)
        # Devices are tried in their order, so devices before the last free one that are not free are held by other
        # runs.
        tried = present[: present.index(free[-1]) + 1]
        others = [device.name for device in tried if device not in free]
        words = f"CUDA {_listed(names)}" + (f"; another run holds {_listed(others)}" if others else "")
        return DevicePlan(names, words, need.each)
    words = _shortage(need, len(present), len(free))
    if need.asked == "CUDA":
        raise NoDevices(Problem(_DEVICE, f"CUDA needs a device for each rank, and {words}; use Auto or CPU"))
    if not present and not need.explicit:
        return DevicePlan(each=need.each)
    return DevicePlan((), f"{words}, so all ranks compute on the CPU", need.each)


def _listed(names: Sequence[str]) -> str:
    return f"device{'' if len(names) == 1 else 's'} {', '.join(names)}"
