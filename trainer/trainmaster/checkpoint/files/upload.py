"""The upload of a staged shard from memory to durable storage. Standard library only: agents and ranks use it.

Uploads outlive ranks: the shard lies in a memory file that the uploader holds. No collective makes the manifest; the
uploader that finds the receipts of all ranks makes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trainmaster.checkpoint.files import checkpoint_manifest, lineage
from trainmaster.checkpoint.files.retention import ABANDONED, retain
from trainmaster.checkpoint.files.storage import Storage, open_storage
from trainmaster.contract.wire.checkpoint_format import (
    MANIFEST,
    Chunk,
    Receipt,
    ShardFile,
    TensorIndex,
    receipt_name,
)
from trainmaster.contract.wire.message_codec import encode
from trainmaster.errors import Fenced

_BLOCK = 4 << 20
METADATA = "__metadata__"


class _OtherRank(ValueError):
    """This shard is no longer needed, because the shard of another rank of the same checkpoint was given up."""


def upload(
    message: dict[str, Any],
    fd: int,
    storage: Storage | None = None,
    *,
    moved: Callable[[], None] = lambda: None,
    tried_again: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Make one staged shard durable, and complete the checkpoint if this shard was the last one missing.

    `message` is a STAGED message: {step, round, rank, world_size, storage, directory, file, size, keep}. Return {step,
    round, rank, directory, tier, manifest_sha256, committed, stored, error, why}. Trouble of the storage does not
    raise: `error` describes it, and then nothing is left that a resume could choose. `why` is "storage" for an error
    that may pass, "fenced", "other rank" or "broken".

    `moved` is called for each block. `tried_again` is called after an error that may pass: if it returns True, the
    shards that other ranks have stored stay, because this shard will be uploaded later.
    """
    step, round, rank, directory = message["step"], message["round"], message["rank"], message["directory"]
    result = {"step": step, "round": round, "rank": rank, "directory": directory, "tier": "storage"}
    manifest = error = why = ""
    stored = False
    try:
        storage = storage or open_storage(message["storage"])
        # Not closed by hand: a failed write may still hold views of it. The last reference unmaps it.
        _store(storage, message, mmap.mmap(fd, message["size"], prot=mmap.PROT_READ), moved)
        stored = True
        _check_fence(storage, round, directory)
        manifest = checkpoint_manifest.commit(storage, directory) or ""
    except (OSError, ValueError, checkpoint_manifest.Damaged, Fenced) as failure:
        error, why = f"checkpoint {directory}, rank {rank}: {_words(failure, message['storage'])}", _kind(failure)
        if storage is not None and not stored and not (why == "storage" and tried_again()):
            abandon(message, error, storage)
    if storage is not None and manifest:
        with contextlib.suppress(OSError, checkpoint_manifest.Damaged):  # the next commit tries again
            retain(storage, message.get("keep", 0), newest=directory)
    how = {"committed": bool(manifest), "stored": stored, "error": error, "why": why}
    return {**result, "manifest_sha256": manifest, **how}


def read_header(memory: mmap.mmap | bytes | memoryview) -> tuple[dict[str, Any], int]:
    """Return (header, offset of the data in bytes) of a file in the safetensors format."""
    (length,) = struct.unpack_from("<Q", memory, 0)
    header: dict[str, Any] = json.loads(bytes(memory[8 : 8 + length]))
    return header, 8 + length


def _store(storage: Storage, message: dict[str, Any], memory: mmap.mmap, moved: Callable[[], None]) -> None:
    step, round, rank, directory, name = (message[k] for k in ("step", "round", "rank", "directory", "file"))
    path = f"{directory}/{receipt_name(rank)}"
    present = storage.list(directory)
    if receipt_name(rank) in present:  # a directory is never overwritten
        return
    if ABANDONED in present:
        raise _OtherRank("the shard of another rank could not be stored")
    _check_fence(storage, round, directory)
    whole = memoryview(memory)
    file = write(storage, directory, name, _blocks(whole, moved))
    header, begin = read_header(memory)
    tensors, values, common = index(header, begin, name)
    receipt = Receipt(
        step=step,
        round=round,
        rank=rank,
        world_size=message["world_size"],
        file=file,
        tensors=tensors,
        values=values,
        common=common,
    )
    if ABANDONED in storage.list(directory):
        raise _OtherRank("the shard of another rank could not be stored")
    storage.create_exclusive(path, encode(receipt))


def write(storage: Storage, directory: str, name: str, blocks: Iterable[bytes | memoryview]) -> ShardFile:
    """Write a file of a checkpoint, and return its name, size and sha256."""
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes | memoryview]:
        for block in blocks:
            digest.update(block)
            yield block

    size = storage.write(f"{directory}/{name}", hashed())
    return ShardFile(name, size, digest.hexdigest())


def index(
    header: dict[str, Any], begin: int, name: str
) -> tuple[dict[str, TensorIndex], dict[str, Any], dict[str, Any]]:
    """Return (tensors, values, common) from the header of a file. `begin` is the offset of its data in bytes."""
    about = header.get(METADATA, {})
    chunks = json.loads(about.get("chunks", "{}"))
    tensors: dict[str, TensorIndex] = {}
    for key, entry in header.items():
        if key == METADATA:
            continue
        start, end = entry["data_offsets"]
        fqn, shape, offset = chunks.get(key, (key, entry["shape"], [0] * len(entry["shape"])))
        chunk = Chunk(name, offset, entry["shape"], begin + start, begin + end)
        known = tensors.get(fqn) or TensorIndex(entry["dtype"], shape, [])
        tensors[fqn] = dataclasses.replace(known, chunks=[*known.chunks, chunk])
    return tensors, json.loads(about.get("values", "{}")), json.loads(about.get("common", "{}"))


def _check_fence(storage: Storage, round: int, directory: str) -> None:
    newest = lineage.newest_round(storage)
    if newest > round and not lineage.counts(storage, directory):
        raise Fenced(f"round {newest} has taken the storage")


def abandon(message: dict[str, Any], error: str, storage: Storage | None = None) -> None:
    """Remove a checkpoint's files, and mark it so that the uploaders of other ranks give up their shards.

    Call this only before the shard of `message` is stored: until then no other process can complete the checkpoint.
    """
    directory = message["directory"]
    storage = storage or open_storage(message["storage"])
    with contextlib.suppress(OSError):
        if MANIFEST in storage.list(directory):
            return
        for name in storage.list(directory):
            storage.remove(f"{directory}/{name}")
        storage.create_exclusive(f"{directory}/{ABANDONED}", json.dumps({"error": error}).encode())


def _blocks(whole: memoryview, moved: Callable[[], None]) -> Iterator[memoryview]:
    for start in range(0, len(whole), _BLOCK):
        moved()
        yield whole[start : start + _BLOCK]


def _kind(failure: Exception) -> str:
    if isinstance(failure, OSError):
        return "storage"
    return "fenced" if isinstance(failure, Fenced) else "other rank" if isinstance(failure, _OtherRank) else "broken"


def _words(failure: Exception, storage: str) -> str:
    if isinstance(failure, OSError) and failure.errno:
        return f"{os.strerror(failure.errno)} ({failure.filename or storage})"
    return str(failure)
