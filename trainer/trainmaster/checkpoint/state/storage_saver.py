"""Saves of a rank to storage, without collectives: it writes the pieces of its share into one file in memory.

A thread copies them into a memory file in the safetensors format, during the forward and backward pass of the next
step: parameters and optimizer state do not change before the optimizer runs, and it waits for the copy
(`Saver.settle`). The thread passes the file's descriptor to the agent, or uploads the file itself if there is no agent.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from trainmaster.checkpoint.files.upload import upload
from trainmaster.checkpoint.state.capture import Snapshot
from trainmaster.checkpoint.state.file_layout import header, lay_out
from trainmaster.checkpoint.state.save_shares import Place, owned
from trainmaster.contract.wire.checkpoint_format import directory_name, shard_name

MAX_UNDER_WAY = 2
"""Saves whose files may wait in host memory at once; a further save waits for the oldest."""


class _Copy:
    """The file in memory of one save. The thread makes it, or a step that needs it before the thread is ready.

    After `make`, the file has `fd` and `size`, or there is an `error`. The caller that has sent the file closes it.
    """

    def __init__(self, step: int, head: bytes, parts: list[torch.Tensor]) -> None:
        self.step, self.fd, self.size = step, -1, 0
        self.error: OSError | None = None
        self._head, self._parts = head, parts
        self._lock = threading.Lock()

    def make(self, name: str) -> None:
        with self._lock:
            if self.size or self.error is not None:
                return
            try:
                self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
                # Written rather than mapped: the kernel takes pages as they come, and no other thread is kept from
                # the interpreter meanwhile.
                self.size = _write(self.fd, self._head) + sum(_write(self.fd, content(part)) for part in self._parts)
            except OSError as error:
                self.error = error
                self.close()
            self._parts = []

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class Saver:
    """The saves of one rank to storage. `send` passes a staged file to the agent; without it, our thread uploads."""

    def __init__(
        self,
        storage: str,
        *,
        rank: int,
        world_size: int,
        round: int,
        keep: int = 0,
        place: Place | None = None,
        send: Callable[[dict[str, Any], int], None] | None = None,
        on_result: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.storage, self.rank, self.world_size, self.round, self.keep = storage, rank, world_size, round, keep
        self.place = place or Place(rank, range(world_size))
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
        values = snapshot.values if self.rank == 0 else _own_values(snapshot.values, self.rank)
        self.settle()
        # A forward pass changes buffers, and the user's own objects change at any time.
        layout = lay_out(
            [
                replace(piece, data=piece.data.detach().clone()) if _is_loose(piece.name, snapshot) else piece
                for piece in owned(snapshot, self.place)
            ]
        )
        self._room.acquire()
        self._newest = _Copy(step, header(layout, values, common), [part for _, _, part in layout.parts])
        if self._thread is None:  # not in the constructor: a fork keeps no thread
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()
        self._work.put(self._newest)
        return True

    def settle(self) -> None:
        """Wait until the last save is copied. If the thread is still busy with another one, copy it here."""
        if self._newest is not None:
            self._newest.make(shard_name(self.rank))
            self._newest = None

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until all saves have been sent. Return False if that takes longer than `timeout_s` seconds."""
        with self._work.all_tasks_done:
            return self._work.all_tasks_done.wait_for(lambda: not self._work.unfinished_tasks, timeout_s)

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


def _own_values(values: dict[str, Any], rank: int) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name.startswith(f"rank.{rank}.")}


def _is_loose(name: str, snapshot: Snapshot) -> bool:
    return name in snapshot.buffers or name.startswith("rank.")


def content(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the host. A contiguous tensor on the host is not copied."""
    host = tensor.detach().cpu().contiguous()
    return memoryview(host.reshape(-1).view(torch.uint8).numpy())


def _write(fd: int, data: bytes | memoryview) -> int:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]
    return len(data)
