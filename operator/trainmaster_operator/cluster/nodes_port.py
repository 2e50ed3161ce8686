"""The port `Nodes`: what the operator asks of a cluster's nodes, where a ClusterRole of its own allows that.

It is apart from `Cluster`, which each world has and which needs no such right.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from trainmaster_operator.cluster.port import Object


class NodeRecord(NamedTuple):
    """What is kept of a node."""

    name: str
    version: str  # its resourceVersion
    created_at: str  # RFC 3339
    taints: tuple[Object, ...]


class Nodes(Protocol):
    """Every verb may raise Forbidden, and Unavailable."""

    async def list(self) -> list[NodeRecord]: ...

    async def get(self, name: str) -> NodeRecord:
        """Raises NotFound."""
        ...

    async def set_taints(self, node: NodeRecord, taints: tuple[Object, ...]) -> None:
        """Replace the taints of a node. Raises Conflict if anybody has changed the node since it was read, NotFound."""
        ...
