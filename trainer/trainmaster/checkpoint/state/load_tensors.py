"""Loading of a checkpoint into any topology, with the load planner of torch's DCP over our manifest."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.futures import Future

from trainmaster.checkpoint.files.storage import Storage
from trainmaster.checkpoint.memory.nearest_memory_copy import RamFile
from trainmaster.checkpoint.state import capture
from trainmaster.checkpoint.state.file_layout import DTYPES
from trainmaster.contract.wire.checkpoint_format import Chunk, Manifest, TensorIndex
from trainmaster.errors import ConfigError

_GAP = 1 << 20
_SPAN = 256 << 20

Source = Storage | RamFile
Wanted = tuple[Chunk, torch.dtype, Callable[[torch.Tensor], Any]]


class ManifestReader(StorageReader):  # type: ignore[misc]
    """A DCP storage reader that reads the chunks of a manifest. Its methods are those of torch's `StorageReader`."""

    def __init__(self, storage: Source, directory: str, tensors: Mapping[str, TensorIndex]) -> None:
        self.storage, self.directory, self.tensors = storage, directory, tensors

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the manifest's tensors in the form of DCP: shapes and offsets in elements, and where each chunk is.
        Nothing is read from storage."""
        described: dict[str, Any] = {}
        where: dict[MetadataIndex, Chunk] = {}
        for name, tensor in self.tensors.items():
            chunks = []
            for chunk in tensor.chunks:
                chunks.append(ChunkStorageMetadata(torch.Size(chunk.offset), torch.Size(chunk.shape)))
                where[MetadataIndex(name, chunk.offset)] = chunk
            properties = TensorProperties(dtype=DTYPES[tensor.dtype])
            described[name] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
        return Metadata(described, storage_data=where)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep the places of the chunks that `read_metadata` returned."""
        self.where: dict[MetadataIndex, Chunk] = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan of this rank unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans of all ranks unchanged: each rank reads what it needs by itself."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the chunks of `plan` and pass each one to `planner`. Return a future that is already complete. Raises
        OSError if a file cannot be read or is too short."""
        wanted = []
        for item in plan.items:
            dtype = DTYPES[self.tensors[item.storage_index.fqn].dtype]
            wanted.append((self.where[item.storage_index], dtype, partial(_fill, planner, item)))
        read_chunks(self.storage, self.directory, wanted)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader is made for one checkpoint and used once."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False, so that torch never chooses this reader for a path by itself: it needs a manifest."""
        return False


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
        reader = ManifestReader(storage, directory, {name: manifest.tensors[name] for name in others})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of no_dist, which is what we want
            dcp_load(others, storage_reader=reader, planner=DefaultLoadPlanner(), no_dist=True)


def _same_chunk(saved: TensorIndex, tensor: torch.Tensor) -> tuple[Chunk, torch.Tensor] | None:
    """Return (chunk, local tensor) if one saved chunk is exactly this rank's part of the tensor, or None."""
    offset = [0] * tensor.dim()
    if not isinstance(tensor, DTensor):
        local = tensor.detach()
    else:
        local = tensor.to_local().detach()
        parts = capture.blocks(tensor)
        if len(parts) != 1:
            return None
        offset = list(parts[0].offsets)
    shape = list(local.shape)
    return next(((c, local) for c in saved.chunks if c.offset == offset and c.shape == shape), None)


def _fill(planner: LoadPlanner, item: ReadItem, content: torch.Tensor) -> None:
    block = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
    target = planner.resolve_tensor(item).detach()
    target.copy_(content[block])
    planner.commit_tensor(item, target)


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
