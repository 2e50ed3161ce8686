"""Copies of a state that lies on a CUDA device: on the device itself, and from there to the host.

A copy on the device takes milliseconds, and then the state may change. The way to the host takes seconds, and runs in a
stream of its own while training continues. Nothing is allocated before the first copy, so a process may still fork.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SMALL = 32 << 20
"""Bytes of pieces in host memory that are copied at once, while a step waits, if all others are copied on the
device."""

MARGIN, MARGIN_SHARE = 1 << 30, 0.05
"""Bytes of a device that stay free beside a copy of the state: the first number, or this share if that is more."""


Write = Callable[[memoryview], int]
"""Writes bytes, and returns their number."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a device.

    limit: what this process may take at most. free: what no process has. reserved: what torch has taken for this
    process, whether tensors use it or not; reserved_before: the same before the first copy. allocated: what its tensors
    use. peak: the most that they have used at once.
    """

    limit: int
    free: int
    reserved: int
    reserved_before: int
    allocated: int
    peak: int


def fits(on_device: int, on_host: int, memory: DeviceMemory | None) -> bool:
    """Return True if the state is to be copied on its device: `on_device` bytes of it lie there, `on_host` elsewhere.

    Call it between two steps. The next step needs as much more than what is allocated now as an earlier one has needed.
    It is not counted on to find that in what torch has reserved, because pieces of the copy may lie in the middle of
    it. `memory` is None if the device doesn't tell it.
    """
    if not on_device or on_host > SMALL or memory is None or memory.peak < on_device:  # such a peak counts nothing
        return False
    margin = max(MARGIN, int(memory.limit * MARGIN_SHARE))
    for_copies = memory.reserved - memory.reserved_before
    available = min(memory.free, memory.limit - memory.reserved) + for_copies
    return on_device + (memory.peak - memory.allocated) + margin <= available


class Cuda:
    """What copies need of a CUDA device. Tests have one that isn't there."""

    buffer_size = 32 << 20
    """Bytes of each of the two buffers in host memory."""

    def __init__(self) -> None:
        self._reserved_before: dict[torch.device, int] = {}

    def device_of(self, parts: Iterable[Tensor]) -> torch.device | None:
        """Return the device on which `parts` lie, apart from those in host memory. None if there is none, or
        several."""
        found = {part.device for part in parts if part.device.type == "cuda"}
        return found.pop() if len(found) == 1 else None

    def memory(self, device: torch.device) -> DeviceMemory | None:
        """Return the memory of a device, or None if its allocator keeps no statistics."""
        try:
            free, total = torch.cuda.mem_get_info(device)
            numbers = torch.cuda.memory_stats(device)
            share = torch.cuda.get_per_process_memory_fraction(device)
        except RuntimeError:  # an allocator that isn't torch's
            return None
        reserved = numbers["reserved_bytes.all.current"]
        before = self._reserved_before.setdefault(device, reserved)
        used = numbers["allocated_bytes.all.current"], numbers["allocated_bytes.all.peak"]
        return DeviceMemory(int(total * share), free, reserved, before, *used)

    def clone(self, part: Tensor) -> Tensor:
        """Return a contiguous copy, which is made in the current stream. Raises torch.OutOfMemoryError."""
        return part.detach().clone(memory_format=torch.contiguous_format)

    def event(self, device: torch.device) -> Any:
        """Return an event that comes when all is done that was given to the device's current stream so far."""
        event = torch.cuda.Event(blocking=True)  # who waits for it leaves its core to others
        event.record(torch.cuda.current_stream(device))
        return event

    def stream(self, device: torch.device) -> Any:
        """Return a new stream. It does not wait for the default stream, nor the default stream for it."""
        return torch.cuda.Stream(device)

    def within(self, stream: Any, after: Any) -> AbstractContextManager[Any]:
        """Return a context in which `stream` is the current one. It begins when the event `after` has come."""
        stream.wait_event(after)
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def buffer(self) -> Tensor:
        """Return `buffer_size` bytes of pinned host memory, or of any host memory if it can't be pinned."""
        try:
            return torch.empty(self.buffer_size, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError:  # the machine has no more memory to pin
            return torch.empty(self.buffer_size, dtype=torch.uint8, device="cpu")

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy bytes into a buffer, in the current stream. The host does not wait."""
        target.copy_(source, non_blocking=True)


class HostCopies:
    """The way of a state from its device to the host: through two buffers, which take turns. Threads take turns, too.

    While the bytes in one buffer are written, the device fills the other one.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._lock = threading.Lock()
        self._streams: dict[torch.device, Any] = {}
        self._buffers: list[Tensor] = []

    def write(self, parts: list[Tensor], device: torch.device, after: Any, write: Write) -> int:
        """Pass the bytes of `parts` to `write`, in their order, and return the sum of what it returns.

        `after` is an event of the stream in which the parts were computed. `parts` is emptied, and the memory of each
        part is free as soon as it has been copied, if nothing else refers to it.
        """
        rest = parts[::-1]
        parts.clear()
        with self._lock:
            if not self._buffers:
                self._buffers = [self._cuda.buffer() for _ in range(2)]
            if device not in self._streams:
                self._streams[device] = self._cuda.stream(device)
            with self._cuda.within(self._streams[device], after):
                return self._pass_on(rest, device, write)

    def _pass_on(self, rest: list[Tensor], device: torch.device, write: Write) -> int:
        buffers, written = itertools.cycle(self._buffers), 0
        full = self._fill(next(buffers), rest, device)
        try:
            while full is not None:
                before, full = full, self._fill(next(buffers), rest, device)
                before.wait()
                written += write(before.content())
        finally:
            if full is not None:  # a write has failed, and the next save uses this buffer
                full.wait()
        return written

    def _fill(self, buffer: Tensor, rest: list[Tensor], device: torch.device) -> _Full | None:
        """Begin to copy the next bytes of `rest` into a buffer. Return None if there are none left."""
        filled, sources = 0, []
        while rest and filled < len(buffer):
            part = _bytes(rest.pop())
            now, later = part[: len(buffer) - filled], part[len(buffer) - filled :]
            if len(later):
                rest.append(later)
            if len(now):
                self._cuda.copy(buffer[filled : filled + len(now)], now)
            filled += len(now)
            sources.append(part)
        return _Full(buffer[:filled], sources, self._cuda.event(device)) if filled else None


class _Full:
    """A buffer that the device fills, and the tensors whose memory must stay until then."""

    def __init__(self, buffer: Tensor, sources: list[Tensor], event: Any) -> None:
        self._buffer, self._sources, self._event = buffer, sources, event

    def wait(self) -> None:
        self._event.synchronize()
        self._sources.clear()  # training may use their memory at once

    def content(self) -> memoryview:
        return memoryview(self._buffer.numpy())


def _bytes(part: Tensor) -> Tensor:
    """Return a part as a row of bytes, in its memory if it lies there without gaps, or else in host memory."""
    part = part.detach()
    if not part.is_contiguous():
        part = part.cpu().contiguous()  # a device without room has none for another copy
    return part.reshape(-1).view(torch.uint8)
