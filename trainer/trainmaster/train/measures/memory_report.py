"""What takes a rank's memory: the sentence that a rank reports when its memory is exhausted."""

from __future__ import annotations

import mmap
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from trainmaster.host import rank_memory
from trainmaster.parallel.local_shard import local

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
NAMED = 4  # parts of a model that a report names, those with most first
_ELSE = "the loss"


class Activations:
    """The bytes that forward passes keep for their backward passes, by part of a model: its children, and each block.

    Autograd reports each tensor within `counted`, so the numbers are exact with every parallelism and wrapper, but each
    tensor costs microseconds. What recomputation keeps is not reported by autograd, and is not counted.

    `most` has the bytes of each part at its maximum, over all micro-batches under way at once.
    """

    def __init__(self, model: nn.Module) -> None:
        self.most: Counter[str] = Counter()
        self._parts = dict(_parts(model))
        self._now: Counter[str] = Counter()
        self._within: list[str] = []
        self._parameters: set[int] = set()
        self._known: weakref.WeakValueDictionary[int, _Kept] = weakref.WeakValueDictionary()

    def counted_once(self, *, is_first: bool) -> AbstractContextManager[None]:
        """Return the context for a step of a round: `counted` for the first one alone, because all others keep the
        same."""
        return self.counted() if is_first else nullcontext()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A context in which the tensors that autograd keeps are counted."""
        handles = []
        for name, part in self._parts.items():
            handles.append(part.register_forward_pre_hook(lambda part, _, name=name: self._enter(name, part)))
            handles.append(part.register_forward_hook(lambda *_: self._leave(), always_call=True))
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._keep, _give_back):
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._within.clear()

    def _enter(self, name: str, part: nn.Module) -> None:
        self._within.append(name)
        # Gathered from shards by now.
        self._parameters.update(local(p).untyped_storage().data_ptr() for p in part.parameters())

    def _leave(self) -> None:
        if self._within:
            self._within.pop()

    def _keep(self, tensor: Tensor) -> Any:
        place = local(tensor).untyped_storage()
        address = place.data_ptr()
        known = self._known.get(address)
        if known is None and address not in self._parameters:
            # As long as autograd has it, nothing else comes to lie there.
            known = self._known[address] = _Kept(self, self._within[-1] if self._within else _ELSE, place.nbytes())
        return tensor.detach(), known  # an output as it is would keep its own graph alive

    def add(self, name: str, size: int) -> None:
        self._now[name] += size
        self.most[name] = max(self.most[name], self._now[name])


class _Kept:
    """One storage, for as long as it is kept."""

    def __init__(self, activations: Activations, name: str, size: int) -> None:
        self._activations, self._name, self._size = activations, name, size
        activations.add(name, size)

    def __del__(self) -> None:
        self._activations.add(self._name, -self._size)


def report(
    model: nn.Module, optimizer: Any, others: Iterable[Tensor], activations: Activations, device: torch.device
) -> str:
    """Return a sentence that names the largest parts of this rank's memory.

    `others` are tensors that are kept in addition to those of the model and its optimizer.
    """
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    owners = {
        "parameters": _bytes(model.parameters()),
        "gradients": _bytes(p.grad for p in model.parameters() if p.grad is not None),
        "optimizer state": _bytes(states),
        "compressed gradients": _bytes(others),
        "activations of a step": sum(activations.most.values()),
    }
    largest = sorted(((size, name) for name, size in owners.items() if size), reverse=True)
    parts = ", ".join(f"{name} {amount(size)}" for size, name in largest)
    return f"{_in_use(device)}: {parts}{_of_parts(activations.most)}"


def amount(size: float) -> str:
    """Return a size in bytes as text."""
    for unit in UNITS:
        if size < 1023.5 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 99.5 or unit == "B" else f"{size:.1f} {unit}"


def _of_parts(most: Counter[str]) -> str:
    """Return the parts and their sizes as text. Parts whose names differ only in a number are named once."""
    alike: dict[str, list[int]] = {}
    for name, size in most.items():
        alike.setdefault(re.sub(r"\d+", "*", name), []).append(size)
    found = sorted(((sum(sizes), name, sizes) for name, sizes in alike.items() if sum(sizes)), reverse=True)
    if not found:
        return ""
    words = [
        f"{name} {amount(total)}" + (f" ({len(sizes)} of up to {amount(max(sizes))})" if len(sizes) > 1 else "")
        for total, name, sizes in found[:NAMED]
    ]
    return f"; of the activations: {', '.join(words)}"


def _in_use(device: torch.device) -> str:
    if device.type == "cuda":
        used, limit = torch.cuda.memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
        return f"tensors take {amount(used)} of the device's {amount(limit)}"
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[1]) * mmap.PAGESIZE
    container = rank_memory.container()
    limit = container.limit() if container is not None else None
    return f"this process takes {amount(used)}" + (f" of the container's {amount(limit)}" if limit is not None else "")


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from ((f"{name}.{key}", part) for key, part in child.named_children())
        else:
            yield name, child


def _give_back(kept: tuple[Tensor, Any]) -> Tensor:
    return kept[0]


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages of tensors. Each storage is counted once."""
    places = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({place.data_ptr(): place.nbytes() for place in places}.values())
