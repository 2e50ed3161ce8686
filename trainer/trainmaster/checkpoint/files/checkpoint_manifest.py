"""The manifest of a checkpoint: made of the receipts of all ranks, read, and compared with the files that it names.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

from trainmaster.checkpoint.files.storage import Storage
from trainmaster.contract.wire.checkpoint_format import MANIFEST, Manifest, Receipt, TensorIndex, parse_receipt
from trainmaster.contract.wire.message_codec import WireError, decode, encode
from trainmaster.errors import Fenced

_BLOCK = 4 << 20


class Damaged(Exception):
    """A checkpoint that cannot be trusted. The message says which part is damaged, and why."""


def merge(receipts: Iterable[Receipt]) -> Manifest:
    """Return the manifest made of the receipts of all ranks. Raises Damaged if the receipts do not fit together."""
    receipts = sorted(receipts, key=lambda receipt: receipt.rank)
    first = receipts[0]
    if [receipt.rank for receipt in receipts] != list(range(first.world_size)):
        raise Damaged(f"receipts of {len(receipts)} ranks, {first.world_size} expected")
    tensors: dict[str, TensorIndex] = {}
    values: dict[str, Any] = {}
    for receipt in receipts:
        if (receipt.step, receipt.round, receipt.world_size) != (first.step, first.round, first.world_size):
            raise Damaged(f"the receipt of rank {receipt.rank} is of another checkpoint")
        for name, index in receipt.tensors.items():
            known = tensors.get(name)
            if known is None:
                tensors[name] = index
            elif (known.dtype, known.shape) != (index.dtype, index.shape):
                raise Damaged(f"tensor {name}: rank {receipt.rank} has another shape or dtype than the ranks below")
            else:
                tensors[name] = dataclasses.replace(known, chunks=known.chunks + index.chunks)
        for name, value in receipt.values.items():
            if name in values and name.endswith(".param_groups"):  # each stage of a pipeline has those of its own
                values[name] = values[name] + value
            values.setdefault(name, value)
    return Manifest(
        step=first.step,
        round=first.round,
        world_size=first.world_size,
        files=[receipt.file for receipt in receipts],
        tensors=tensors,
        values=values,
        **first.common,
    )


def commit(storage: Storage, directory: str) -> str | None:
    """Complete a checkpoint: write its manifest if the receipts of all ranks are on storage.

    Return the manifest's sha256, or None if receipts are missing. Any number of processes may call this at once,
    because the manifest is created exclusively. Raises Damaged for receipts that cannot be decoded or do not fit
    together, and Fenced if the checkpoint's files were removed meanwhile, as newer checkpoints are complete.
    """
    ranks = [rank for name in storage.list(directory) if (rank := parse_receipt(name)) is not None]
    if not ranks:
        return None
    try:
        receipts = [decode(Receipt, storage.read(f"{directory}/receipt-{rank:05d}.json")) for rank in sorted(ranks)]
    except WireError as error:
        raise Damaged(f"{directory}: {error}") from None
    if len(receipts) < receipts[0].world_size:
        return None
    data = encode(merge(receipts))
    if not storage.create_exclusive(f"{directory}/{MANIFEST}", data):
        data = storage.read(f"{directory}/{MANIFEST}")
    present = storage.list(directory)
    if any(receipt.file.name not in present for receipt in receipts):
        # Whoever removes a checkpoint begins with its manifest, and that was before this one was made.
        storage.remove(directory)
        raise Fenced("it was removed while it was being written, because newer checkpoints are complete")
    return hashlib.sha256(data).hexdigest()


def read_manifest(storage: Storage, directory: str) -> Manifest:
    """Return the manifest of a checkpoint, after a check that all of its files are there with their sizes.

    Raises Damaged if the manifest is missing or cannot be decoded, or if a file is missing or has another size.
    """
    try:
        manifest = decode(Manifest, storage.read(f"{directory}/{MANIFEST}"))
    except FileNotFoundError:
        raise Damaged(f"{directory} has no {MANIFEST}: it was never completed") from None
    except (WireError, OSError) as error:
        raise Damaged(f"{directory}/{MANIFEST}: {error}") from None
    sizes = storage.list(directory)
    for file in manifest.files:
        if file.name not in sizes:
            raise Damaged(f"{directory}/{file.name} is missing")
        if sizes[file.name] != file.size:
            raise Damaged(f"{directory}/{file.name} has {sizes[file.name]} bytes, {file.size} were written")
    return manifest


def verify(storage: Storage, directory: str, files: Iterable[tuple[str, int, str]]) -> None:
    """Read files, given as (name, size, sha256), completely. Raises Damaged for the first one whose content has
    changed."""
    for name, size, sha256 in files:
        digest = hashlib.sha256()
        try:
            for start in range(0, size, _BLOCK):
                digest.update(storage.read(f"{directory}/{name}", start, min(size, start + _BLOCK)))
        except OSError as error:
            raise Damaged(f"{directory}/{name}: {error}") from None
        if digest.hexdigest() != sha256:
            raise Damaged(f"{directory}/{name}: its content doesn't match its checksum")
