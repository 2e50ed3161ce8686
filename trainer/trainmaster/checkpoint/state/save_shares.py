"""The share of each rank in a save to storage: which pieces of which tensors it writes. No collective is needed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainmaster.checkpoint.state.capture import Snapshot, blocks
from trainmaster.checkpoint.state.dtensors import is_dtensor
from trainmaster.checkpoint.state.file_layout import Piece
from trainmaster.checkpoint.state.island_names import island_of
from trainmaster.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

REPLICAS = "dpReplicate"
"""The axis of a mesh whose ranks all have the same state."""


@dataclass(frozen=True)
class Place:
    """The place of a rank among the ranks that have the same tensors.

    holders: the ranks with the same plain tensors, which are those of one stage of a pipeline. replica: (index, count)
    of replicas that are not an axis of a DTensor's mesh. island: the index of the island; island 0 saves what all
    islands share. elsewhere: names of tensors that the ranks of another stage save.
    """

    rank: int
    holders: range
    replica: tuple[int, int] = (0, 1)
    island: int = 0
    elsewhere: frozenset[str] = frozenset()


def place_of(objects: Mapping[str, Any], rank: int, world_size: int) -> Place:
    """Return the place of a rank that saves `objects`.

    All ranks have the same names, unless one of the objects is a model that `tm.parallelize` has divided.
    """
    spread = next((thing for thing in objects.values() if hasattr(thing, "stage_ranks")), None)
    if spread is None:
        return Place(rank, range(world_size))
    elsewhere = frozenset(f"{name}.{tensor}" for name in objects for tensor in spread.saved_elsewhere)
    return Place(rank, spread.stage_ranks, spread.replica, spread.island, elsewhere)


def owned(snapshot: Snapshot, place: Place) -> list[Piece]:
    """Return the pieces that this rank saves. Over all ranks, the pieces cover each tensor exactly once.

    One replica of a DTensor saves it, chosen by the tensor's name. Plain tensors are taken to be equal on all their
    holders.
    """
    rank, holders = place.rank, place.holders
    pieces = []
    for name, tensor in snapshot.tensors.items():
        if (place.island and not island_of(name)) or name in place.elsewhere:
            continue
        choice = zlib.crc32(name.encode())
        if is_dtensor(tensor):
            if _is_spokesman(tensor, choice, place.replica):
                pieces += local_pieces(name, tensor)
        elif name.startswith("rank.") or rank == holders[0 if name in snapshot.buffers else choice % len(holders)]:
            pieces.append(Piece(name, [0] * tensor.dim(), list(tensor.shape), tensor))
    return pieces


def _is_spokesman(tensor: DTensor, choice: int, replica: tuple[int, int]) -> bool:
    if REPLICAS not in (tensor.device_mesh.mesh_dim_names or ()):
        which, count = replica
        if which != choice % count:
            return False
        choice //= count
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    for axis, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise ConfigError("a tensor with pending partial sums can't be saved")
        if placement.is_replicate():
            size = tensor.device_mesh.size(axis)
            if coordinate[axis] != choice % size:
                return False
            choice //= size
    return True


def local_pieces(name: str, tensor: torch.Tensor) -> list[Piece]:
    """Return this rank's part of a tensor as one piece, or [] if it has none. Raises ConfigError if it is not one
    block."""
    if not is_dtensor(tensor):
        return [Piece(name, [0] * tensor.dim(), list(tensor.shape), tensor)]
    local = tensor.to_local()
    chunks = [chunk for chunk in blocks(tensor) if math.prod(chunk.sizes) or not chunk.sizes]
    if not chunks:
        return []
    if len(chunks) != 1 or list(chunks[0].sizes) != list(local.shape):
        raise ConfigError(f"tensor {name}: its shard isn't one block of the whole, which checkpoints can't keep yet")
    return [Piece(name, list(chunks[0].offsets), list(tensor.shape), local)]
