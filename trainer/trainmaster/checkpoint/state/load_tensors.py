"""Loading of a checkpoint into any topology.

Where a rank's shards are chunks of the checkpoint, as after a restart, there is nothing to plan. For other shards the
load planner of torch's DCP is imported (`reshard_tensors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from trainmaster.checkpoint.files.storage import Storage
from trainmaster.checkpoint.memory.nearest_memory_copy import RamFile
from trainmaster.checkpoint.state import capture
from trainmaster.checkpoint.state.dtensors import is_dtensor
from trainmaster.checkpoint.state.file_layout import DTYPES
from trainmaster.contract.wire.checkpoint_format import Chunk, Manifest, TensorIndex
from trainmaster.errors import ConfigError

_GAP = 1 << 20
_SPAN = 256 << 20

Source = Storage | RamFile
Wanted = tuple[Chunk, torch.dtype, Callable[[torch.Tensor], Any]]


def read_chunks(storage: Source, directory: str, wanted: Iterable[Wanted]) -> None:
    """Read each wanted chunk, and pass its content to its function as a tensor on the host.

    Chunks that are near to each other in a file are read together. Raises OSError if a file is too short.
    """
    by_file: dict[str, list[Wanted]] = {}
    for item in wanted:
        by_file.setdefault(item[0].file, []).append(item)
    for file, items in by_file.items():
        for span in _spans(sorted(items, key=lambda item: item[0].start)):
            begin, end = span[0][0].start, max(chunk.end for chunk, _, _ in span)
            data = _content(storage, f"{directory}/{file}", begin, end)
            if len(data) != end - begin:
                raise OSError(f"{directory}/{file} ends early: {len(data)} of {end - begin} bytes at {begin}")
            for chunk, dtype, take in span:
                count = (chunk.end - chunk.start) // dtype.itemsize
                if count:
                    content = torch.frombuffer(data, dtype=dtype, count=count, offset=chunk.start - begin)
                    take(content.view(chunk.shape))


def _content(storage: Source, path: str, begin: int, end: int) -> Any:
    if isinstance(storage, RamFile):
        return storage.view(path, begin, end)  # no copy
    return bytearray(storage.read(path, begin, end))


def load_tensors(storage: Source, directory: str, manifest: Manifest, targets: capture.Tensors) -> None:
    """Fill `targets` in place. Raises ConfigError if the checkpoint lacks a tensor or has it in another shape."""
    for name, tensor in targets.items():
        saved = manifest.tensors.get(name)
        if saved is None:
            raise ConfigError(f"checkpoint {directory} has no tensor {name}: the model or optimizer was changed")
        if saved.shape != list(tensor.shape):
            raise ConfigError(
                f"checkpoint {directory}: tensor {name} has shape {saved.shape}, "
                f"but {list(tensor.shape)} is expected: the model was changed"
            )
    # After a restart in place every shard is a chunk of the checkpoint, and there is nothing to plan.
    alike: list[Wanted] = []
    others: capture.Tensors = {}
    for name, tensor in targets.items():
        found = _same_chunk(manifest.tensors[name], tensor)
        if found is None:
            others[name] = tensor
        else:
            alike.append((found[0], DTYPES[manifest.tensors[name].dtype], found[1].copy_))
    read_chunks(storage, directory, alike)
    if others:
        from trainmaster.checkpoint.state.reshard_tensors import reshard_tensors

        reshard_tensors(storage, directory, {name: manifest.tensors[name] for name in others}, others)


def _same_chunk(saved: TensorIndex, tensor: torch.Tensor) -> tuple[Chunk, torch.Tensor] | None:
    """Return (chunk, local tensor) if one saved chunk is exactly this rank's part of the tensor, or None."""
    offset = [0] * tensor.dim()
    if not is_dtensor(tensor):
        local = tensor.detach()
    else:
        local = tensor.to_local().detach()
        parts = capture.blocks(tensor)
        if len(parts) != 1:
            return None
        offset = list(parts[0].offsets)
    shape = list(local.shape)
    return next(((c, local) for c in saved.chunks if c.offset == offset and c.shape == shape), None)


def _spans(wanted: list[Wanted]) -> Iterator[list[Wanted]]:
    """Yield runs of chunks, in the order of their starts, that are near enough to each other to be read together."""
    span: list[Wanted] = []
    end = 0
    for item in wanted:
        if span and (item[0].start > end + _GAP or max(end, item[0].end) - span[0][0].start > _SPAN):
            yield span
            span = []
        end = max(end, item[0].end) if span else item[0].end
        span.append(item)
    if span:
        yield span
