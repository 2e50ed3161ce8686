"""Nodes as an API server has them, for tests of what reads and taints them."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster_operator.cluster.nodes_port import NodeRecord
from trainmaster_operator.cluster.port import ApiError, Conflict, NotFound, Object


@dataclass
class FakeNodes:
    """`meddle`: what somebody else does to a node between our read and our write, once."""

    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    refusal: ApiError | None = None
    meddle: Object | None = None
    calls: list[str] = field(default_factory=list)

    def add(self, name: str, *taints: Object, created_at: str = "2026-01-01T00:00:00Z") -> None:
        self.nodes[name] = NodeRecord(name, "1", created_at, taints)

    def taints(self, name: str) -> tuple[Object, ...]:
        return self.nodes[name].taints

    async def list(self) -> list[NodeRecord]:
        self._called("list")
        return list(self.nodes.values())

    async def get(self, name: str) -> NodeRecord:
        self._called(f"get {name}")
        if name not in self.nodes:
            raise NotFound(f'nodes "{name}" not found')
        return self.nodes[name]

    async def set_taints(self, node: NodeRecord, taints: tuple[Object, ...]) -> None:
        self._called(f"set {node.name}")
        if self.meddle is not None:
            meddled, self.meddle = self.meddle, None
            self._write(node.name, (*self.nodes[node.name].taints, meddled))
        if self.nodes[node.name].version != node.version:
            raise Conflict("the node has changed")
        self._write(node.name, taints)

    def _write(self, name: str, taints: tuple[Object, ...]) -> None:
        known = self.nodes[name]
        self.nodes[name] = known._replace(version=str(int(known.version) + 1), taints=taints)

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.refusal is not None:
            raise self.refusal
