"""Saves of a rank to storage, without collectives: it writes the pieces of its share into one file in memory.

A thread copies them into a memory file in the safetensors format, during the forward and backward pass of the next
step: parameters and optimizer state do not change before the optimizer runs, and it waits for the copy
(`Saver.settle`). If a CUDA device has room, the pieces are copied there first, and the optimizer waits for that copy
alone. The thread passes the file's descriptor to the agent, or uploads the file itself if there is no agent.
"""

from __future__ import annotations

import errno
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from trainmaster.checkpoint.files.upload import upload
from trainmaster.checkpoint.state.capture import Snapshot
from trainmaster.checkpoint.state.file_layout import Layout, header, lay_out
from trainmaster.checkpoint.state.island_names import island_of
from trainmaster.checkpoint.state.save_copies import SMALL, Cuda, HostCopies, Write, fits
from trainmaster.checkpoint.state.save_shares import Place, owned
from trainmaster.contract.wire.checkpoint_format import directory_name, shard_name

MAX_UNDER_WAY = 2
"""Saves whose files may wait in host memory at once; a further save waits for the oldest."""


class _Copy:
    """The file in memory of one save. The thread makes it, or a step that needs it before the thread is ready.

    After `make`, the file has `fd` and `size`, or there is an `error`. The caller that has sent the file closes it.

    `write` passes the bytes of `parts` to the function that it gets, and returns their number. `copied` is the event
    after which nothing here refers to the state, or None if that is the case only after `make`.
    """

    def __init__(
        self,
        step: int,
        head: bytes,
        parts: list[torch.Tensor],
        write: Callable[[list[torch.Tensor], Write], int],
        copied: Any = None,
    ) -> None:
        self.step, self.fd, self.size = step, -1, 0
        self.error: OSError | None = None
        self.on_device = copied is not None
        self._head, self._parts, self._write, self._copied = head, parts, write, copied
        self._lock = threading.Lock()

    def make(self, name: str) -> None:
        with self._lock:
            if self.size or self.error is not None:
                return
            try:
                self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
                # Written rather than mapped: the kernel takes pages as they come, and no other thread is kept from
                # the interpreter meanwhile.
                self.size = _write(self.fd, self._head) + self._write(self._parts, partial(_write, self.fd))
            except OSError as error:
                self._fail(error)
            except RuntimeError as error:  # of a device; other saves are still to be sent
                self._fail(OSError(errno.EIO, f"the state can't be copied: {error}"))
            self._parts = []

    def settle(self, name: str) -> None:
        """Wait until the state may change."""
        if self._copied is not None:
            self._copied.synchronize()
        else:
            self.make(name)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _fail(self, error: OSError) -> None:
        self.error = error
        self.close()


class Saver:
    """The saves of one rank to storage. `send` passes a staged file to the agent; without it, our thread uploads.

    `began` is the step with which this process began. Before it has completed another one, nothing shows how much
    memory of a device a step needs.
    """

    def __init__(
        self,
        storage: str,
        *,
        rank: int,
        world_size: int,
        round: int,
        keep: int = 0,
        began: int = 0,
        place: Place | None = None,
        send: Callable[[dict[str, Any], int], None] | None = None,
        on_result: Callable[[dict[str, Any]], None] | None = None,
        cuda: Cuda | None = None,
    ) -> None:
        self.storage, self.rank, self.world_size, self.round, self.keep = storage, rank, world_size, round, keep
        self.began = began
        self.place = place or Place(rank, range(world_size))
        self._cuda = cuda or Cuda()
        self._host_copies = HostCopies(self._cuda)
        self._on_device: _Copy | None = None  # the last one that began with a copy on the device
        self._send, self._on_result = send, on_result
        self._work: queue.Queue[_Copy] = queue.Queue()
        self._room = threading.Semaphore(MAX_UNDER_WAY)
        self._newest: _Copy | None = None
        self._thread: threading.Thread | None = None
        self._saved: set[int] = set()
        self.failure = ""  # why the newest save failed; an upload that fails in the agent does not set it

    def save(self, step: int, snapshot: Snapshot, common: dict[str, Any]) -> bool:
        """Start to copy and send this rank's pieces. Return False if this step was saved before.

        Until `settle` returns, parameters and the state of optimizers must not change; everything else may. `common`
        {mesh, data, rng, config_sha256} must be equal on all ranks.
        """
        if step in self._saved:
            return False
        self._saved.add(step)
        self.failure = ""
        values = _own_values(snapshot.values, self.place)
        self.settle()
        layout = lay_out(owned(snapshot, self.place))
        self._room.acquire()
        self._newest = self._begin(step, layout, header(layout, values, common), snapshot)
        if self._thread is None:  # not in the constructor: a fork keeps no thread
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()
        self._work.put(self._newest)
        return True

    def settle(self) -> None:
        """Wait until the last save is copied. If the thread is still busy with another one, copy it here.

        A copy on the device is enough.
        """
        if self._newest is not None:
            self._newest.settle(shard_name(self.rank))
            self._newest = None

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until all saves have been sent. Return False if that takes longer than `timeout_s` seconds."""
        with self._work.all_tasks_done:
            return self._work.all_tasks_done.wait_for(lambda: not self._work.unfinished_tasks, timeout_s)

    def _begin(self, step: int, layout: Layout, head: bytes, snapshot: Snapshot) -> _Copy:
        """Return the copy of a save, of which all is copied already that may change before `settle`."""
        if self._on_device is not None:  # the device has room for one save at a time
            self._on_device.make(shard_name(self.rank))
            self._on_device = None
        parts = [part for _, _, part in layout.parts]
        names = [layout.chunks[key][0] if key in layout.chunks else key for key in layout.entries]
        device = self._cuda.device_of(parts)
        there = sum(part.nbytes for part in parts if part.device == device)
        elsewhere = sum(part.nbytes for part in parts) - there
        if device is not None and step > self.began and fits(there, elsewhere, self._cuda.memory(device)):
            copy = self._copy_on_device(step, head, parts, device)
            if copy is not None:
                return copy
        # A forward pass changes buffers, and the user's own objects change at any time.
        parts = [part.clone() if _is_loose(name, snapshot) else part for name, part in zip(names, parts, strict=True)]
        if device is None or elsewhere > SMALL:  # what lies in host memory is written from where it lies
            return _Copy(step, head, parts, _write_parts)
        return _Copy(step, head, parts, self._through_buffers(device, self._cuda.event(device)))

    def _copy_on_device(self, step: int, head: bytes, parts: list[torch.Tensor], device: torch.device) -> _Copy | None:
        """Copy all parts where they lie. Return None if their memory can't be allocated."""
        try:
            parts = [self._cuda.clone(part) for part in parts]
        except torch.OutOfMemoryError:  # another process was faster, or the free memory lies in pieces
            return None
        copied = self._cuda.event(device)
        copy = self._on_device = _Copy(step, head, parts, self._through_buffers(device, copied), copied)
        # The other thread may be busy with an upload, and the device wants its memory back.
        threading.Thread(target=copy.make, args=(shard_name(self.rank),), name="device copy", daemon=True).start()
        return copy

    def _through_buffers(self, device: torch.device, after: Any) -> Callable[[list[torch.Tensor], Write], int]:
        return lambda parts, write: self._host_copies.write(parts, device, after, write)

    def _run(self) -> None:
        while True:
            copy = self._work.get()
            try:
                copy.make(shard_name(self.rank))
                if copy.error is not None:
                    raise copy.error
                self._send_away(copy)
            except OSError as error:
                self._failed(copy.step, f"checkpoint of step {copy.step}, rank {self.rank}: {error}")
            finally:
                copy.close()
                self._room.release()
                self._work.task_done()

    def _send_away(self, copy: _Copy) -> None:
        message = {
            "step": copy.step,
            "round": self.round,
            "rank": self.rank,
            "world_size": self.world_size,
            "storage": self.storage,
            "directory": directory_name(copy.step, self.round),
            "file": shard_name(self.rank),
            "size": copy.size,
            "keep": self.keep,
        }
        if self._send is not None:
            self._send(message, copy.fd)
            return
        result = upload(message, copy.fd)
        if self._on_result is not None:
            self._on_result(result)
        if result["error"]:
            self._note(copy.step, result["error"])
            print(f"trainmaster: {result['error']}", file=sys.stderr)

    def _note(self, step: int, error: str) -> None:
        if step == max(self._saved, default=step):
            self.failure = error

    def _failed(self, step: int, error: str) -> None:
        self._note(step, error)
        print(f"trainmaster: {error}", file=sys.stderr)
        if self._on_result is not None:
            self._on_result({"step": step, "round": self.round, "rank": self.rank, "committed": False, "error": error})


def _own_values(values: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return the values that this rank saves: its own ones and, if it is the first of its stage of a pipeline or of its
    island, those that ranks of other stages or islands may not have."""
    rank, is_first = place.rank, place.rank == place.holders[0]

    def is_wanted(name: str) -> bool:
        if name.startswith("rank."):
            return name.startswith(f"rank.{rank}.")
        return is_first and bool(not place.island or island_of(name))

    return {name: value for name, value in values.items() if is_wanted(name)}


def _is_loose(name: str, snapshot: Snapshot) -> bool:
    return name in snapshot.buffers or name.startswith("rank.")


def content(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the host. A contiguous tensor on the host is not copied."""
    host = tensor.detach().cpu().contiguous()
    return memoryview(host.reshape(-1).view(torch.uint8).numpy())


def _write_parts(parts: list[torch.Tensor], write: Write) -> int:
    return sum(write(content(part)) for part in parts)


def _write(fd: int, data: bytes | memoryview) -> int:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]
    return len(data)
