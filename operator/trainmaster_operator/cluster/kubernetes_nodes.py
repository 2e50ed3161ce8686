"""`Nodes` over a real API server."""

from __future__ import annotations

from urllib.parse import quote

from trainmaster_operator.cluster.kubernetes import PAGE
from trainmaster_operator.cluster.kubernetes_connection import Connection, Request
from trainmaster_operator.cluster.nodes_port import NodeRecord
from trainmaster_operator.cluster.port import Object, Unavailable

NODE = "Node"
_PATH = "/api/v1/nodes"


class KubernetesNodes:
    """The nodes of a cluster, over the connection of `KubernetesCluster`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> list[NodeRecord]:
        found: list[NodeRecord] = []
        query = {"limit": str(PAGE)}
        while True:
            request = Request("list", NODE, "GET", _PATH, query)
            page = await self._connection.call(request)
            try:
                found += [_record(node) for node in page["items"] or []]
                rest = page["metadata"].get("continue")
            except (KeyError, TypeError, AttributeError) as error:
                raise Unavailable(f"{request}: not a list") from error
            if not rest:
                return found
            query = {**query, "continue": rest}

    async def get(self, name: str) -> NodeRecord:
        return await self._node(Request("get", NODE, "GET", f"{_PATH}/{quote(name, safe='')}"))

    async def set_taints(self, node: NodeRecord, taints: tuple[Object, ...]) -> None:
        # A merge patch replaces the whole list, so the version makes sure that no other taint is lost.
        body = {"metadata": {"resourceVersion": node.version}, "spec": {"taints": list(taints) or None}}
        merge = "application/merge-patch+json"
        path = f"{_PATH}/{quote(node.name, safe='')}"
        await self._node(Request("patch", NODE, "PATCH", path, body=body, content_type=merge))

    async def _node(self, request: Request) -> NodeRecord:
        answer = await self._connection.call(request)
        try:
            return _record(answer)
        except (KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"{request}: the answer isn't a node") from error


def _record(node: Object) -> NodeRecord:
    meta, spec = node["metadata"], node.get("spec") or {}
    return NodeRecord(
        meta["name"], meta["resourceVersion"], meta.get("creationTimestamp") or "", tuple(spec.get("taints") or ())
    )
