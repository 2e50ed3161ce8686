"""Saving without collectives: each rank knows which chunks it owns, and writes them into one file in memory.

The copy to host memory is the part that blocks training. A thread then lays the file out in the safetensors
format in a memory file, and hands its descriptor to the agent (or, without one, uploads it itself).
"""

from __future__ import annotations

import functools
import json
import math
import os
import queue
import struct
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from trainmaster.checkpoint.state import DTYPE_NAMES, Snapshot, blocks
from trainmaster.checkpoint.upload import METADATA, upload
from trainmaster.contract.wire.lineage import directory_name, shard_name
from trainmaster.errors import ConfigError

MAX_UNDER_WAY = 2
"""Saves whose copies may wait in host memory at once; a further save waits for the oldest."""


@dataclass(frozen=True)
class Piece:
    """A contiguous block of a tensor that this rank saves. `offset` and `whole`: elements of the whole tensor."""

    name: str
    offset: list[int]
    whole: list[int]
    data: torch.Tensor

    @property
    def key(self) -> str:
        return self.name if self.whole == list(self.data.shape) else f"{self.name}@{','.join(map(str, self.offset))}"


def owned(snapshot: Snapshot, rank: int, holders: range) -> list[Piece]:
    """The pieces that this rank saves: over all ranks they cover each tensor exactly once.

    Of a DTensor's replicas one speaks, chosen by the name; plain tensors are taken to be equal on `holders`, the ranks
    that have the same ones: those of one stage of a pipeline.
    """
    pieces = []
    for name, tensor in snapshot.tensors.items():
        choice = zlib.crc32(name.encode())
        if isinstance(tensor, DTensor):
            if _is_spokesman(tensor, choice):
                pieces += local_pieces(name, tensor)
        elif name.startswith("rank.") or rank == holders[0 if name in snapshot.buffers else choice % len(holders)]:
            pieces.append(Piece(name, [0] * tensor.dim(), list(tensor.shape), tensor))
    return pieces


class Saver:
    """Saves of one rank. `send` hands a staged file to the agent; without it the upload runs in our thread."""

    def __init__(
        self,
        storage: str,
        *,
        rank: int,
        world_size: int,
        round: int,
        keep: int = 0,
        holders: range | None = None,
        send: Callable[[dict[str, Any], int], None] | None = None,
        on_result: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.storage, self.rank, self.world_size, self.round, self.keep = storage, rank, world_size, round, keep
        self.holders = range(world_size) if holders is None else holders
        self._send, self._on_result = send, on_result
        self._work: queue.Queue[tuple[int, bytes, torch.Tensor]] = queue.Queue()
        self._room = threading.Semaphore(MAX_UNDER_WAY)
        self._spare: list[torch.Tensor] = []
        self._thread: threading.Thread | None = None
        self._saved: set[int] = set()

    def save(self, step: int, snapshot: Snapshot, common: dict[str, Any]) -> bool:
        """Copy this rank's pieces to host memory, and leave the rest to the thread. False: it was saved before.

        `common` {mesh, data, rng, config_sha256} must be equal on all ranks.
        """
        if step in self._saved:
            return False
        self._saved.add(step)
        values = snapshot.values if self.rank == 0 else _own_values(snapshot.values, self.rank)
        layout = lay_out(owned(snapshot, self.rank, self.holders))
        head, size = header(layout, values, common), layout.size
        self._room.acquire()
        buffer = next((b for b in self._spare if b.numel() == size), None)
        if buffer is None:
            buffer = torch.empty(size, dtype=torch.uint8)
        self._spare.clear()
        with torch.no_grad():
            for start, end, source in layout.parts:
                buffer[start:end].view(source.dtype).view(source.shape).copy_(source)
        if self._thread is None:  # not in the constructor: a fork keeps no thread
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()
        self._work.put((step, head, buffer))
        return True

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was saved has been handed over; False if that took longer than the limit."""
        with self._work.all_tasks_done:
            return self._work.all_tasks_done.wait_for(lambda: not self._work.unfinished_tasks, timeout_s)

    def _run(self) -> None:
        while True:
            step, head, buffer = self._work.get()
            try:
                self._stage(step, head, buffer)
            except OSError as error:
                self._failed(step, f"checkpoint of step {step}, rank {self.rank}: {error}")
            finally:
                self._spare.append(buffer)
                self._room.release()
                self._work.task_done()

    def _stage(self, step: int, head: bytes, buffer: torch.Tensor) -> None:
        name = shard_name(self.rank)
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            size = _write(fd, head) + _write(fd, memoryview(buffer.numpy()))
            message = {
                "step": step,
                "round": self.round,
                "rank": self.rank,
                "world_size": self.world_size,
                "storage": self.storage,
                "directory": directory_name(step, self.round),
                "file": name,
                "size": size,
                "keep": self.keep,
            }
            if self._send is not None:
                self._send(message, fd)
                return
            result = upload(message, fd)
        finally:
            os.close(fd)
        if self._on_result is not None:
            self._on_result(result)
        if result["error"]:
            print(f"trainmaster: {result['error']}", file=sys.stderr)

    def _failed(self, step: int, error: str) -> None:
        print(f"trainmaster: {error}", file=sys.stderr)
        if self._on_result is not None:
            self._on_result({"step": step, "round": self.round, "rank": self.rank, "committed": False, "error": error})


@dataclass(frozen=True)
class Layout:
    """How pieces lie in a file in the safetensors format, behind its header."""

    entries: dict[str, Any]  # of the header
    chunks: dict[str, Any]  # {key: [name, shape of the whole, offset]} of the pieces that aren't whole tensors
    parts: list[tuple[int, int, torch.Tensor]]  # (start, end, content)
    size: int

    @functools.cached_property
    def entries_text(self) -> str:
        return _json(self.entries)[1:-1]

    @functools.cached_property
    def chunks_text(self) -> str:
        return _json(self.chunks)


def lay_out(pieces: list[Piece], behind: Layout | None = None) -> Layout:
    """`behind`: what already has its place."""
    entries: dict[str, Any] = dict(behind.entries) if behind else {}
    chunks = dict(behind.chunks) if behind else {}
    parts = list(behind.parts) if behind else []
    position = behind.size if behind else 0
    # Wide elements first: without holes between them (the format allows none) all are aligned. Then the small ones,
    # since all ranks want those (step counts) and so read them at once.
    for piece in sorted(pieces, key=lambda piece: (-piece.data.element_size(), piece.data.numel(), piece.key)):
        tensor = piece.data.detach()
        if tensor.dtype not in DTYPE_NAMES:
            raise ConfigError(f"tensor {piece.name}: checkpoints can't keep {tensor.dtype}")
        end = position + tensor.numel() * tensor.element_size()
        entries[piece.key] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        if piece.key != piece.name:
            chunks[piece.key] = [piece.name, piece.whole, piece.offset]
        parts.append((position, end, tensor))
        position = end
    return Layout(entries, chunks, parts, position)


def header(layout: Layout, values: dict[str, Any], common: dict[str, Any], reserved: int = 0) -> bytes:
    """The header of a checkpoint's file, padded to `reserved` bytes if it is shorter."""
    metadata = {"chunks": layout.chunks_text, "values": _json(values), "common": _json(common)}
    return file_header(layout, metadata, reserved)


def file_header(layout: Layout, metadata: dict[str, str], reserved: int = 0) -> bytes:
    """Of any file in the safetensors format."""
    parts = [part for part in (layout.entries_text, f'"{METADATA}":{_json(metadata)}') if part]
    text = ("{" + ",".join(parts) + "}").encode()
    text += b" " * max(-len(text) % 8, reserved - 8 - len(text))
    return struct.pack("<Q", len(text)) + text


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_spokesman(tensor: DTensor, choice: int) -> bool:
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    for axis, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise ConfigError("a tensor with pending partial sums can't be saved")
        if isinstance(placement, Replicate):
            size = tensor.device_mesh.size(axis)
            if coordinate[axis] != choice % size:
                return False
            choice //= size
    return True


def local_pieces(name: str, tensor: torch.Tensor) -> list[Piece]:
    """What this rank holds of a tensor: one piece, or none."""
    if not isinstance(tensor, DTensor):
        return [Piece(name, [0] * tensor.dim(), list(tensor.shape), tensor)]
    local = tensor.to_local()
    chunks = [chunk for chunk in blocks(tensor) if math.prod(chunk.sizes) or not chunk.sizes]
    if not chunks:
        return []
    if len(chunks) != 1 or list(chunks[0].sizes) != list(local.shape):
        raise ConfigError(f"tensor {name}: its shard isn't one block of the whole, which checkpoints can't keep yet")
    return [Piece(name, list(chunks[0].offsets), list(tensor.shape), local)]


def _own_values(values: dict[str, Any], rank: int) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name.startswith(f"rank.{rank}.")}


def _write(fd: int, data: bytes | memoryview) -> int:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]
    return len(data)
