"""The mesh of all ranks. It says which part of the model and which part of the batch each rank has.

Axes, outermost first (the innermost axis gets neighbouring ranks, which communicate most):

    island        groups of ranks that train alone and average their parameters at intervals (`reduce.diloco_islands`)
    pp            stages of a pipeline
    dpReplicate   replicas of the (sharded) model
    dpShard       shards of parameters, gradients and optimizer state
    cp            parts of each sequence
    tp            parts of each matrix

Ranks whose coordinates differ only on the axes cp, tp or pp work on the same samples. A process group is created only
for an axis whose degree is above 1, because creating a group needs a rendezvous of its ranks.

Expert parallelism (ep) is not another axis of this mesh. Each group of `ep` neighbouring ranks among the dpShard x cp
ranks holds all experts of a layer, divided among these ranks. The parameters of experts have a second mesh, with the
axes (island, pp, dpReplicate, shard, ep, tp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainmaster.contract.config import AXES

SHARD = "shard"
"""The axis over which parameters are sharded. Its size is dpShard x cp: ranks that hold parts of one sequence compute
gradients of the same parameters from different tokens, as ranks with different samples do."""


class Mesh:
    """The mesh of all ranks. The default process group must exist, and its size must be the product of all degrees."""

    def __init__(self, degrees: Mapping[str, int], device_type: str, *, replicas_apart: bool = False) -> None:
        """Create the meshes and their process groups. All ranks must call this together.

        `degrees` has the degree of each axis (default: 1) and of "ep". With `replicas_apart`, the meshes that `data`
        and `experts_data` return don't have the axis dpReplicate: the module `reduce` sums gradients over replicas.
        """
        assert set(degrees) <= {*AXES, "ep"}, f"the mesh has no axes {sorted(set(degrees) - {*AXES, 'ep'})}"
        self.experts_over = degrees.get("ep", 1)
        self.degrees: dict[str, int] = {axis: degrees.get(axis, 1) for axis in AXES}
        rank, size = dist.get_rank(), dist.get_world_size()
        assert math.prod(self.degrees.values()) == size, f"the degrees {self.degrees} do not multiply to {size} ranks"
        self.coordinates: dict[str, int] = {}
        rest = rank
        for axis in reversed(AXES):
            rest, self.coordinates[axis] = divmod(rest, self.degrees[axis])
        shards = self.degrees["dpShard"] * self.degrees["cp"]
        self._device_type, self._apart = device_type, replicas_apart
        self._mesh = self._make(shards)
        self._experts = self._make(shards // self.experts_over, self.experts_over) if self.experts_over > 1 else None
        self._context = self._context_group()

    def data(self) -> DeviceMesh:
        """Return the mesh over which gradients are summed.

        Its axes are those of (dpReplicate, shard) that exist; with `replicas_apart` it has the axis shard alone.
        """
        return _sub(self._mesh, *self._summed)

    def experts_data(self) -> DeviceMesh:
        """Return the mesh over which the gradients of experts are summed. It has the same axes as `data`."""
        assert self._experts is not None
        return _sub(self._experts, *self._summed)

    def experts(self) -> DeviceMesh:
        """Return the mesh over which experts are divided: (ep, tp), or ep alone if the degree of tp is 1."""
        assert self._experts is not None
        return _sub(self._experts, "ep", "tp")

    def with_replicas(self, part: DeviceMesh) -> DeviceMesh:
        """Return `part`, a mesh over which parameters are sharded, with the axis dpReplicate before its axes."""
        whole = self._experts if "ep" in _names(part) else self._mesh
        assert whole is not None
        return _sub(whole, "dpReplicate", *_names(part))

    def __getitem__(self, axis: str) -> DeviceMesh:
        """Return the one-dimensional mesh of island, pp, dpReplicate, shard or tp, whose degree must be above 1."""
        return _sub(self._mesh, axis)

    @property
    def _summed(self) -> tuple[str, ...]:
        return (SHARD,) if self._apart else ("dpReplicate", SHARD)

    @property
    def is_sharded(self) -> bool:
        """Return True if the mesh has the axis of shards: dpShard x cp is above 1, or replicas are kept apart."""
        return SHARD in _names(self._mesh)

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return the process group of island, pp, cp or tp, whose degree must be above 1."""
        return self._context if axis == "cp" else self[axis].get_group()

    def degree(self, axis: str) -> int:
        """Return the degree of an axis."""
        return self.degrees[axis]

    def coordinate(self, axis: str) -> int:
        """Return this rank's coordinate on an axis."""
        return self.coordinates[axis]

    @property
    def data_ranks(self) -> int:
        """Return the number of parts into which a batch is divided."""
        return self.degrees["island"] * self.island_data_ranks

    @property
    def island_data_ranks(self) -> int:
        """Return the number of parts into which an island's share of a batch is divided."""
        return self.degrees["dpReplicate"] * self.degrees["dpShard"]

    @property
    def data_rank(self) -> int:
        """Return the index of this rank's part of the batch, counted from 0."""
        own = self.coordinates["dpReplicate"] * self.degrees["dpShard"] + self.coordinates["dpShard"]
        return self.coordinates["island"] * self.island_data_ranks + own

    @property
    def stage_ranks(self) -> range:
        """Return the ranks of this rank's island and pipeline stage, which have parameters of the same names."""
        size = dist.get_world_size() // self.degrees["island"] // self.degrees["pp"]
        stage = self.coordinates["island"] * self.degrees["pp"] + self.coordinates["pp"]
        return range(stage * size, (stage + 1) * size)

    @property
    def counts_tokens(self) -> bool:
        """Return True on the rank that counts the tokens it sees: its tp and pp coordinates are 0.

        Other ranks with the same dp and cp coordinates see the same tokens, and do not count them.
        """
        return self.coordinates["tp"] == 0 and self.coordinates["pp"] == 0

    def _make(self, shards: int, experts: int = 1) -> DeviceMesh:
        sizes = {
            "island": self.degrees["island"],
            "pp": self.degrees["pp"],
            "dpReplicate": self.degrees["dpReplicate"],
            SHARD: shards,
            "ep": experts,
            "tp": self.degrees["tp"],
        }
        # One axis to reduce gradients over is kept even if it has only one rank, because the reduction also casts to
        # the run's precision.
        always = SHARD if shards > 1 or experts > 1 or self._apart else "dpReplicate"
        kept = [axis for axis, n in sizes.items() if n > 1 or axis == always]
        return init_device_mesh(self._device_type, tuple(sizes[axis] for axis in kept), mesh_dim_names=tuple(kept))

    def _context_group(self) -> dist.ProcessGroup | None:
        if self.degrees["cp"] == 1:
            return None
        if self.degrees["dpShard"] == 1:
            return self[SHARD].get_group()
        ranks = torch.arange(dist.get_world_size()).view(-1, self.degrees["cp"], self.degrees["tp"]).transpose(1, 2)
        own, _ = dist.new_subgroups_by_enumeration(ranks.flatten(0, 1).tolist())
        return own


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    names: tuple[str, ...] = mesh.mesh_dim_names
    return names


def _sub(mesh: DeviceMesh, *axes: str) -> DeviceMesh:
    """Return the submesh with those of `axes` that the mesh has."""
    kept = tuple(axis for axis in axes if axis in _names(mesh))
    return mesh if _names(mesh) == kept else mesh[kept]
