"""CUDA devices that don't exist, in a process that starts with them or is forked from one that did.

CUDA_FAKED_DEVICES says how many there are; it is read with each call, so forks may have other numbers. Tensors stay on
the CPU. What is imitated:

    torch.cuda: is_available, device_count, set_device, current_device, device (a context), is_initialized, init,
        synchronize, empty_cache, get_device_name, get_device_capability, get_device_properties (name, total_memory,
        uuid), memory_allocated, max_memory_allocated, mem_get_info; is_current_stream_capturing, and in newer torch
        torch.accelerator.current_stream, of which an optimizer asks whether a graph is being captured
    tensors and modules: .cuda(), .to() and `device=` of a CUDA device leave them on the CPU; torch.load maps to it
    torch.distributed.init_process_group: nccl is gloo. DistributedDataParallel: takes device_ids and ignores them
    trainmaster.train.process_group.World.join: prints which device the rank got, and goes on with the CPU
    trainmaster_operator.cli.this_machine.cuda_devices.uuids, which asks NVML otherwise

CUDA_VISIBLE_DEVICES is obeyed, as a list of numbers. Streams, events, pinned memory, generators of a device,
DataParallel and `with torch.device("cuda")` are not imitated. Standard library only until torch is there.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import os
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

NUMBER = "CUDA_FAKED_DEVICES"
MEMORY_BYTES = 80 * 2**30
_CUDA = re.compile(r"cuda(:\d+)?")
_current = 0


def uuids() -> list[str]:
    """Of all devices of the machine."""
    return [f"GPU-faked-{number}" for number in range(int(os.environ.get(NUMBER) or 0))]


def visible() -> list[str]:
    """UUIDs of the devices that this process sees."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return uuids()
    return [uuids()[int(name)] for name in given.split(",") if name]


def install() -> None:
    """Fake the devices in modules that are imported already, and in those that will be."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Patches a module when it has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            _PATCHES[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _set_device(device: Any) -> None:
    global _current
    index = _index(device)
    if not 0 <= index < len(visible()):
        raise RuntimeError("CUDA error: invalid device ordinal")
    _current = index


def _index(device: Any) -> int:
    if device is None:
        return _current
    if isinstance(device, int):
        return device
    number = str(device).partition(":")[2]
    return int(number) if number else _current


class _Current:
    """`with torch.cuda.device(n):`"""

    def __init__(self, device: Any) -> None:
        self._device, self._before = device, 0

    def __enter__(self) -> None:
        self._before = _current
        _set_device(self._device)

    def __exit__(self, *_: object) -> None:
        _set_device(self._before)


def _properties(device: Any = None) -> types.SimpleNamespace:
    uuid = visible()[_index(device)]
    return types.SimpleNamespace(name="Faked", total_memory=MEMORY_BYTES, uuid=uuid, major=9, minor=0)


def _patch_torch(torch: Any) -> None:
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    replaced: dict[str, Any] = {
        "is_available": lambda: bool(visible()),
        "device_count": lambda: len(visible()),
        "set_device": _set_device,
        "current_device": lambda: _current,
        "device": _Current,
        "is_initialized": lambda: False,
        "init": nothing,
        "synchronize": nothing,
        "empty_cache": nothing,
        "get_device_name": lambda device=None: "Faked",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": _properties,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "mem_get_info": lambda device=None: (MEMORY_BYTES, MEMORY_BYTES),
        "is_current_stream_capturing": lambda: False,
    }
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch.accelerator.current_stream = lambda device=None: types.SimpleNamespace(is_capturing=lambda: False)
    load = torch.load

    def load_on_cpu(*args: Any, map_location: Any = None, **how: Any) -> Any:
        return load(*args, map_location="cpu" if map_location is not None else None, **how)

    torch.load = load_on_cpu

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return "cpu" if isinstance(value, str) and _CUDA.fullmatch(value) else value

    class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if function is torch.device:  # what a rank chose can be asked
                return function(*args, **(kwargs or {}))
            if function is torch.Tensor.cuda:
                return args[0]
            if function is torch.Tensor.to and len(args) > 1 and isinstance(args[1], int):
                args = (args[0], "cpu", *args[2:])
            named = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
            return function(*map(on_cpu, args), **named)

    OnCpu().__enter__()  # of this thread, to its end


def _patch_distributed(dist: Any) -> None:
    begin = dist.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **how: Any) -> None:
        how.pop("device_id", None)
        begin("gloo" if backend is None or "nccl" in backend else backend, *args, **how)

    dist.init_process_group = init_process_group


def _patch_ddp(module: Any) -> None:
    ddp = module.DistributedDataParallel
    make = ddp.__init__

    def init(self: Any, model: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **how: Any) -> None:
        make(self, model, None, None, *args, **how)

    ddp.__init__ = init


def _patch_world(module: Any) -> None:
    join = module.World.join.__func__

    def join_on_cpu(cls: Any, asked: Any) -> Any:
        world = join(cls, asked)
        chosen = visible()[world.device.index] if world.device.type == "cuda" else "the CPU"
        print(f"this rank computes on {chosen}", flush=True)
        return dataclasses.replace(world, device=module.torch.device("cpu"))

    module.World.join = classmethod(join_on_cpu)


def _patch_devices(module: Any) -> None:
    module.uuids = uuids


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch": _patch_torch,
    "torch.distributed": _patch_distributed,
    "torch.nn.parallel.distributed": _patch_ddp,
    "trainmaster.train.process_group": _patch_world,
    "trainmaster_operator.cli.this_machine.cuda_devices": _patch_devices,
}
