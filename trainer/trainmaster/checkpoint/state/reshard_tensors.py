"""Loading of tensors whose shards are not those of the checkpoint, with the load planner of torch's DCP over our
manifest."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
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
from torch.futures import Future

from trainmaster.checkpoint.state.capture import Tensors
from trainmaster.checkpoint.state.file_layout import DTYPES
from trainmaster.checkpoint.state.load_tensors import Source, read_chunks
from trainmaster.contract.wire.checkpoint_format import Chunk, TensorIndex


def reshard_tensors(storage: Source, directory: str, saved: Mapping[str, TensorIndex], targets: Tensors) -> None:
    """Fill `targets` in place from the saved tensors of the same names and shapes, whatever part of each one a rank
    has. No collective is needed."""
    reader = ManifestReader(storage, directory, saved)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of no_dist, which is what we want
        dcp_load(targets, storage_reader=reader, planner=DefaultLoadPlanner(), no_dist=True)


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


def _fill(planner: LoadPlanner, item: ReadItem, content: torch.Tensor) -> None:
    block = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
    target = planner.resolve_tensor(item).detach()
    target.copy_(content[block])
    planner.commit_tensor(item, target)
