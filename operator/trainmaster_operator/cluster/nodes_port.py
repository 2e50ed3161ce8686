"""The port `Nodes`: what the operator does with a cluster's nodes, if a separate ClusterRole allows it.

It is separate from `Cluster`, which exists on a cluster, in a local run and in the simulation, and needs no such right.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from trainmaster_operator.cluster.port import Object


class NodeRecord(NamedTuple):
    """What is kept of a node."""

    name: str
    version: str  # The resourceVersion.
    created_at: str  # RFC 3339
    taints: tuple[Object, ...]


class Nodes(Protocol):
    """Access to nodes. Every method may raise Forbidden and Unavailable."""

    async def list(self) -> list[NodeRecord]: ...

    async def get(self, name: str) -> NodeRecord:
        """Return a node. Raise NotFound."""
        ...

    async def set_taints(self, node: NodeRecord, taints: tuple[Object, ...]) -> None:
        """Replace the taints of a node. Raise Conflict if the node was changed since it was read, and NotFound."""
        ...
