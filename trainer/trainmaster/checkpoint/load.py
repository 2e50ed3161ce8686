"""Loading any topology into any other: DCP's load planner over our manifest."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
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

from trainmaster.checkpoint import state
from trainmaster.checkpoint import values as tagged
from trainmaster.checkpoint.storage import Storage
from trainmaster.contract.wire.lineage import Chunk, Manifest, TensorIndex
from trainmaster.errors import ConfigError

_GAP = 1 << 20
_SPAN = 256 << 20


class ManifestReader(StorageReader):  # type: ignore[misc]
    """Reads the chunks that a manifest lists; neighbours in a file are read together."""

    def __init__(self, storage: Storage, directory: str, tensors: Mapping[str, TensorIndex]) -> None:
        self.storage, self.directory, self.tensors = storage, directory, tensors

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        described: dict[str, Any] = {}
        where: dict[MetadataIndex, Chunk] = {}
        for name, tensor in self.tensors.items():
            chunks = []
            for chunk in tensor.chunks:
                chunks.append(ChunkStorageMetadata(torch.Size(chunk.offset), torch.Size(chunk.shape)))
                where[MetadataIndex(name, chunk.offset)] = chunk
            properties = TensorProperties(dtype=state.DTYPES[tensor.dtype])
            described[name] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
        return Metadata(described, storage_data=where)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.where: dict[MetadataIndex, Chunk] = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[tuple[Chunk, ReadItem]]] = {}
        for item in plan.items:
            chunk = self.where[item.storage_index]
            by_file.setdefault(chunk.file, []).append((chunk, item))
        for file, wanted in by_file.items():
            wanted.sort(key=lambda pair: pair[0].start)
            for span in _spans(wanted):
                self._read_span(file, span, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def _read_span(self, file: str, span: list[tuple[Chunk, ReadItem]], planner: LoadPlanner) -> None:
        begin, end = span[0][0].start, max(chunk.end for chunk, _ in span)
        data = bytearray(self.storage.read(f"{self.directory}/{file}", begin, end))
        if len(data) != end - begin:
            raise OSError(f"{self.directory}/{file} ends early: {len(data)} of {end - begin} bytes at {begin}")
        for chunk, item in span:
            index = self.tensors[item.storage_index.fqn]
            dtype = state.DTYPES[index.dtype]
            if chunk.end > chunk.start:
                count = (chunk.end - chunk.start) // dtype.itemsize
                whole = torch.frombuffer(data, dtype=dtype, count=count, offset=chunk.start - begin).view(chunk.shape)
            else:
                whole = torch.empty(chunk.shape, dtype=dtype)
            block = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
            target = planner.resolve_tensor(item).detach()
            target.copy_(whole[block])
            planner.commit_tensor(item, target)


def load_tensors(storage: Storage, directory: str, manifest: Manifest, targets: state.Tensors) -> None:
    """Fill `targets` in place. Raises ConfigError in words if the checkpoint has another tensor or shape."""
    for name, tensor in targets.items():
        saved = manifest.tensors.get(name)
        if saved is None:
            raise ConfigError(f"checkpoint {directory} has no tensor {name}: the model or optimizer was changed")
        if saved.shape != list(tensor.shape):
            raise ConfigError(
                f"checkpoint {directory}: tensor {name} has shape {saved.shape}, "
                f"but {list(tensor.shape)} is expected: the model was changed"
            )
    if not targets:
        return
    reader = ManifestReader(storage, directory, {name: manifest.tensors[name] for name in targets})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of no_dist, which is what we want
        dcp_load(targets, storage_reader=reader, planner=DefaultLoadPlanner(), no_dist=True)


def restore(objects: Mapping[str, Any], storage: Storage, directory: str, manifest: Manifest, rank: int) -> None:
    """Set the state of named objects (as `state.capture` took it) to what the checkpoint has.

    What ranks keep for themselves comes from the same rank's part; a rank that the saving world didn't have takes
    the part of rank 0.
    """
    names = state.parameter_names(objects)
    targets: state.Tensors = {}
    extra: dict[str, dict[str, Any]] = {}
    for name, thing in objects.items():
        if isinstance(thing, nn.Module):
            present = state.Snapshot()
            state.capture_module(present, name, thing)
            targets.update(present.tensors)
            extra[name] = {k.removeprefix(f"{name}."): k for k in present.values}
        elif state.is_optimizer(thing):
            targets.update(state.optimizer_targets(thing, name, names, manifest))
    packed = {name: _packed(name, objects[name], manifest, rank) for name in objects if name not in extra}
    loose = {path: _empty(manifest, path) for value in packed.values() for path in tagged.tensor_paths(value)}
    load_tensors(storage, directory, manifest, {**targets, **loose})
    for name, thing in objects.items():
        if isinstance(thing, nn.Module):
            values = {
                k: tagged.unpack(manifest.values[v], loose) for k, v in extra[name].items() if v in manifest.values
            }
            if values:
                state.unwrap(thing).load_state_dict(values, strict=False)
        elif state.is_optimizer(thing):
            state.restore_groups(thing, name, names, manifest)
        elif packed[name] is not None:
            thing.load_state_dict(tagged.unpack(packed[name], loose))


def _packed(name: str, thing: Any, manifest: Manifest, rank: int) -> Any:
    if state.is_optimizer(thing):
        return None
    for path in (name, f"rank.{rank}.{name}", f"rank.0.{name}"):
        if path in manifest.values:
            return manifest.values[path]
    raise ConfigError(f"checkpoint of step {manifest.step} has no state of {name!r}, which is registered now")


def _empty(manifest: Manifest, path: str) -> torch.Tensor:
    saved = manifest.tensors[path]
    return torch.empty(saved.shape, dtype=state.DTYPES[saved.dtype])


def _spans(wanted: list[tuple[Chunk, ReadItem]]) -> list[list[tuple[Chunk, ReadItem]]]:
    spans: list[list[tuple[Chunk, ReadItem]]] = []
    begin = end = 0
    for pair in wanted:
        chunk = pair[0]
        if spans and chunk.start <= end + _GAP and max(end, chunk.end) - begin <= _SPAN:
            spans[-1].append(pair)
        else:
            spans.append([pair])
            begin = chunk.start
        end = max(end if len(spans[-1]) > 1 else 0, chunk.end)
    return spans
