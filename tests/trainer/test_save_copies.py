"""Saves of a state that lies on a CUDA device: when it may change, what is written, and what memory that takes.

Without a GPU, the device is one whose streams do nothing before somebody waits for them.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainmaster.checkpoint.state.capture import Snapshot
from trainmaster.checkpoint.state.save_copies import SMALL, Cuda, DeviceMemory, HostCopies, fits
from trainmaster.checkpoint.state.storage_saver import Saver

GIB = 1 << 30
WAIT_S = 20.0


class Stream:
    """Work in an order, which is done when somebody waits for it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []
        self.done = 0
        self._lock = threading.Lock()

    def do(self, up_to: int) -> None:
        with self._lock:
            while self.done < up_to:
                act, self.work[self.done] = self.work[self.done], lambda: None  # what it refers to may be freed
                self.done += 1
                act()
                del act


class Event:
    def __init__(self, stream: Stream, gate: threading.Event | None = None) -> None:
        self._stream, self._position, self._gate = stream, len(stream.work), gate

    def synchronize(self) -> None:
        if self._gate is not None:
            assert self._gate.wait(WAIT_S), "somebody waits for the way to the host"
        self._stream.do(self._position)


class LateCuda(Cuda):
    """A device that is the CPU and does everything as late as it may. `gate`: until it is set, no copy arrives on the
    host."""

    buffer_size = 1000

    def __init__(self, *, room: bool = True, out_of_memory_at: int = 10**6) -> None:
        self.room, self.out_of_memory_at = room, out_of_memory_at
        self.training, self.gate, self.calls = Stream(), threading.Event(), [""]
        self.gate.set()
        self.streams: list[Stream] = []
        self._here = threading.local()
        self._clones: list[tuple[int, int, weakref.ref[Any]]] = []

    @property
    def living(self) -> int:
        """Bytes of clones that are not free."""
        return sum(end - begin for begin, end, owner in self._clones if owner() is not None)

    def device_of(self, parts: Iterable[Tensor]) -> torch.device | None:
        return torch.device("cpu")

    def memory(self, device: torch.device) -> DeviceMemory | None:
        assert not self.living, "two saves would take their memory from the same room"
        self.calls.append("memory")
        return DeviceMemory(8 * GIB, 4 * GIB if self.room else 0, GIB, GIB, GIB, GIB)

    def clone(self, part: Tensor) -> Tensor:
        self.calls.append("clone")
        if self.calls.count("clone") > self.out_of_memory_at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        memory = np.ones(max(part.nbytes, 1), dtype=np.uint8)
        self._clones.append((memory.ctypes.data, memory.ctypes.data + part.nbytes, weakref.ref(memory)))
        clone = torch.from_numpy(memory)[: part.nbytes].view(part.dtype).view(part.shape)
        self.training.work.append(lambda: clone.copy_(part))
        return clone

    def event(self, device: torch.device) -> Any:
        stream = getattr(self._here, "stream", self.training)
        return Event(stream, self.gate if stream is not self.training else None)

    def stream(self, device: torch.device) -> Any:
        self.calls.append("stream")
        self.streams.append(Stream())
        return self.streams[-1]

    @contextmanager
    def within(self, stream: Any, after: Any) -> Iterator[None]:
        stream.work.append(after.synchronize)
        self._here.stream = stream
        try:
            yield
        finally:
            del self._here.stream

    def buffer(self) -> Tensor:
        self.calls.append("buffer")
        return torch.full((self.buffer_size,), 255, dtype=torch.uint8)

    def copy(self, target: Tensor, source: Tensor) -> None:
        to, begin, size = target.data_ptr(), source.data_ptr(), len(source)
        owners = [owner for first, last, owner in self._clones if first <= begin < last and owner() is not None]

        def arrive() -> None:
            assert all(owner() is not None for owner in owners), "memory was free before its copy was made"
            ctypes.memmove(to, begin, size)

        self._here.stream.work.append(arrive)


def state(device: str = "cpu", scale: int = 1) -> dict[str, Tensor]:
    """Tensors of many kinds. The first ones are loose: a forward pass may change them."""
    torch.manual_seed(3)
    tensors = {
        "model.mean": torch.randn(33),
        "rank.0.loader": torch.arange(7),
        "model.weight": torch.randn(61 * scale, 47 * scale),
        "model.transposed": torch.randn(20, 30 * scale).t(),
        "model.half": torch.randn(999 * scale).bfloat16(),
        "model.mask": torch.randn(77) > 0,
        "model.none": torch.empty(0, 3),
        "optimizer.one": torch.tensor(5.0),
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def captured(tensors: dict[str, Tensor]) -> Snapshot:
    snapshot = Snapshot()
    snapshot.tensors, snapshot.buffers = dict(tensors), {"model.mean"}
    return snapshot


class Files:
    """What an agent would get: the bytes of each file."""

    def __init__(self) -> None:
        self.by_step: dict[int, bytes] = {}

    def __call__(self, message: dict[str, Any], fd: int) -> None:
        self.by_step[message["step"]] = os.pread(fd, message["size"] + 1, 0)


def saver_of(cuda: Cuda | None, **options: Any) -> tuple[Saver, Files]:
    files = Files()
    return Saver("/nowhere", rank=0, world_size=1, round=1, send=files, cuda=cuda, **options), files


def expected(step: int = 1) -> bytes:
    saver, files = saver_of(None)
    saver.save(step, captured(state()), {"data": 1})
    assert saver.drain(WAIT_S)
    return files.by_step[step]


def change(tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        tensor.zero_()


@pytest.mark.parametrize(
    ("changed", "is_copied_there"),
    [
        ({}, True),
        ({"free": 18 * GIB}, True),
        ({"free": 18 * GIB - 1}, False),  # 10 GiB are for the step, and 4 are the margin
        ({"free": 8 * GIB, "reserved": 40 * GIB}, True),  # 10 GiB were reserved for the copy before
        ({"free": 8 * GIB, "reserved": 40 * GIB, "reserved_before": 40 * GIB}, False),  # and here for steps
        ({"limit": 47 * GIB}, True),  # a limit of the process
        ({"limit": 46 * GIB}, False),
        ({"limit": 18 * GIB, "reserved": 2 * GIB, "reserved_before": 2 * GIB, "peak": 9 * GIB, "allocated": GIB}, True),
        ({"on_device": 4 * GIB - 1, "free": 15 * GIB, "limit": 18 * GIB, "reserved": 0, "reserved_before": 0}, True),
        ({"on_device": 4 * GIB + 1, "free": 15 * GIB, "limit": 18 * GIB, "reserved": 0, "reserved_before": 0}, False),
        ({"on_host": SMALL}, True),
        ({"on_host": SMALL + 1}, False),  # offloaded
        ({"on_device": 0, "on_host": 100}, False),
        ({"allocated": 0, "peak": 0}, False),  # an allocator that doesn't count
    ],
)
def test_a_copy_on_the_device_leaves_the_memory_that_a_step_needs(
    changed: dict[str, int], is_copied_there: bool
) -> None:
    sizes = {"on_device": 4 * GIB, "on_host": 0}
    memory = {"limit": 80 * GIB, "free": 40 * GIB, "reserved": 30 * GIB, "reserved_before": 30 * GIB}
    memory |= {"allocated": 15 * GIB, "peak": 25 * GIB}
    for name, value in changed.items():
        (sizes if name in sizes else memory)[name] = value
    assert fits(**sizes, memory=DeviceMemory(**memory)) == is_copied_there


def test_a_device_that_tells_no_memory_gets_no_copy() -> None:
    assert not fits(GIB, 0, None)


def test_what_torch_reserves_after_the_first_save_is_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"reserved_bytes.all.current": 30, "allocated_bytes.all.current": 15, "allocated_bytes.all.peak": 25}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40, 80))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.5)
    cuda, device = Cuda(), torch.device("cuda:0")
    assert cuda.memory(device) == DeviceMemory(40, 40, 30, 30, 15, 25)
    stats |= {"reserved_bytes.all.current": 36, "allocated_bytes.all.peak": 31}
    assert cuda.memory(device) == DeviceMemory(40, 40, 36, 30, 15, 31)


def test_the_state_may_change_while_its_copy_on_the_device_goes_to_the_host() -> None:
    cuda, tensors = LateCuda(), state()
    saver, files = saver_of(cuda)
    cuda.gate.clear()
    saver.save(1, captured(tensors), {"data": 1})
    saver.settle()
    change(tensors)
    assert not saver.drain(0)
    cuda.gate.set()
    assert saver.drain(WAIT_S)
    assert files.by_step == {1: expected()}
    assert not cuda.living


@pytest.mark.parametrize("options", [{"room": False}, {"out_of_memory_at": 3}])
def test_without_room_a_step_waits_for_the_way_to_the_host_and_the_file_is_the_same(options: dict[str, Any]) -> None:
    cuda, tensors = LateCuda(**options), state()
    saver, files = saver_of(cuda)
    saver.save(1, captured(tensors), {"data": 1})
    tensors["model.mean"].zero_()  # as a forward pass may
    saver.settle()
    change(tensors)
    assert saver.drain(WAIT_S)
    assert files.by_step == {1: expected()}


def test_before_a_first_step_nobody_knows_how_much_memory_it_needs() -> None:
    cuda = LateCuda()
    saver, files = saver_of(cuda, began=4)
    saver.save(4, captured(state()), {"data": 1})
    assert saver.drain(WAIT_S)
    assert "memory" not in cuda.calls
    saver.save(5, captured(state()), {"data": 1})
    assert saver.drain(WAIT_S)
    assert "memory" in cuda.calls
    assert files.by_step == {4: expected(), 5: expected()}


def test_nothing_is_allocated_before_the_first_save() -> None:
    cuda = LateCuda()
    saver, _ = saver_of(cuda)
    assert cuda.calls == [""]
    for step in (1, 2, 3):
        saver.save(step, captured(state()), {})
    assert saver.drain(WAIT_S)
    assert (cuda.calls.count("stream"), cuda.calls.count("buffer")) == (1, 2)


def test_a_save_waits_until_the_one_before_has_left_the_device() -> None:
    cuda = LateCuda()
    saver, files = saver_of(cuda)
    cuda.gate.clear()
    saver.save(1, captured(state()), {"data": 1})
    second = threading.Thread(target=saver.save, args=(2, captured(state()), {"data": 1}))
    second.start()
    assert cuda.calls.count("memory") == 1
    cuda.gate.set()
    second.join(WAIT_S)
    assert saver.drain(WAIT_S)
    assert files.by_step == {1: expected(), 2: expected()}


def test_a_save_leaves_the_device_while_the_one_before_is_still_sent() -> None:
    cuda, gate, left = LateCuda(), threading.Event(), threading.Event()
    write_through = HostCopies.write

    def send(message: dict[str, Any], fd: int) -> None:
        assert gate.wait(WAIT_S)

    def write(self: HostCopies, *arguments: Any) -> int:
        try:
            return write_through(self, *arguments)
        finally:
            if not cuda.living and cuda.calls.count("memory") == 2:
                left.set()

    saver = Saver("/nowhere", rank=0, world_size=1, round=1, send=send, cuda=cuda)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostCopies, "write", write)
        saver.save(1, captured(state()), {})
        saver.save(2, captured(state()), {})
        assert left.wait(WAIT_S)
    gate.set()
    assert saver.drain(WAIT_S)


def test_the_memory_of_each_piece_is_free_once_it_is_copied() -> None:
    cuda, device, living = LateCuda(), torch.device("cpu"), []

    def write(data: memoryview) -> int:
        living.append(cuda.living)
        return len(data)

    clones = [cuda.clone(torch.full((1000,), n, dtype=torch.uint8)) for n in range(5)]
    HostCopies(cuda).write(clones, device, cuda.event(device), write)
    assert living == [4000, 3000, 2000, 1000, 0]


def test_a_write_that_fails_leaves_the_buffers_to_the_next_save() -> None:
    cuda, device, written = LateCuda(), torch.device("cpu"), bytearray()
    copies = HostCopies(cuda)

    def full(data: memoryview) -> int:
        raise OSError("no memory")

    def write(data: memoryview) -> int:
        written.extend(data)
        return len(data)

    parts = [torch.full((1500,), n, dtype=torch.uint8) for n in range(3)]
    with pytest.raises(OSError, match="no memory"):
        copies.write(list(parts), device, cuda.event(device), full)
    assert all(stream.done == len(stream.work) for stream in cuda.streams), "a late copy would overwrite the next save"
    assert copies.write([part + 7 for part in parts], device, cuda.event(device), write) == 4500
    assert written == b"\7" * 1500 + b"\10" * 1500 + b"\11" * 1500


def test_a_failed_copy_is_a_failed_save_and_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = LateCuda()
    told: list[dict[str, Any]] = []
    saver, files = saver_of(cuda, on_result=told.append)

    def fail(target: Tensor, source: Tensor) -> None:
        raise RuntimeError("CUDA error: unknown error")

    with monkeypatch.context() as patch:
        patch.setattr(cuda, "copy", fail)
        saver.save(1, captured(state()), {"data": 1})
        saver.settle()
        assert saver.drain(WAIT_S)
    assert "step 1, rank 0: " in saver.failure
    assert "the state can't be copied: CUDA error: unknown error" in saver.failure
    assert [result["committed"] for result in told] == [False]
    saver.save(2, captured(state()), {"data": 1})
    assert saver.drain(WAIT_S)
    assert saver.failure == ""
    assert files.by_step == {2: expected()}


class NoRoom(Cuda):
    def memory(self, device: torch.device) -> DeviceMemory | None:
        return None


@pytest.mark.cuda
@pytest.mark.parametrize("on_a_stream", [False, True], ids=["default stream", "another stream"])
@pytest.mark.parametrize("has_room", [True, False], ids=["room", "no room"])
def test_a_gpu_trains_on_while_its_state_is_saved(has_room: bool, on_a_stream: bool) -> None:
    saver, files = saver_of(Cuda() if has_room else NoRoom())
    training = torch.cuda.Stream() if on_a_stream else torch.cuda.current_stream()
    another = torch.cuda.Stream()
    counts = {"optimizer.one": torch.tensor(5.0)}  # some optimizers keep these in host memory
    state_then = {**state("cuda", scale=60), **counts, "model.large": torch.arange(50_000_000, device="cuda").int()}
    tensors = {name: torch.zeros_like(tensor) for name, tensor in state_then.items()}
    for step in (1, 2, 3):
        torch.cuda.synchronize()
        used = torch.cuda.memory_allocated()
        with torch.cuda.stream(training):
            torch.cuda._sleep(500_000_000)  # the device is behind the host
            for name, tensor in tensors.items():
                tensor.copy_(state_then[name])
            if has_room:
                with saver._host_copies._lock:  # nothing gets to the host
                    save_and_change(saver, step, tensors, another)
            else:
                save_and_change(saver, step, tensors, another)
        assert (saver._on_device is not None) == has_room
        assert saver.drain(WAIT_S)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == used
    assert saver._host_copies._buffers[0].is_pinned()
    on_host, its_files = saver_of(None)
    on_host.save(1, captured({name: tensor.cpu() for name, tensor in state_then.items()}), {"data": 1})
    assert on_host.drain(WAIT_S)
    assert len(its_files.by_step[1]) > 200_000_000
    for step in (1, 2, 3):
        assert files.by_step[step] == its_files.by_step[1], step


def save_and_change(saver: Saver, step: int, tensors: dict[str, Tensor], another: torch.cuda.Stream) -> None:
    """Save, and let a stream that waits for no other change the state as soon as it may."""
    saver.save(step, captured(tensors), {"data": 1})
    saver.settle()
    with torch.cuda.stream(another):
        change(tensors)
