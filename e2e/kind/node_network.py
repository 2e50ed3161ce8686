"""Pods' network where kind's own can't be pulled: a bridge on each node, and routes between the nodes."""

from __future__ import annotations

import json

from e2e.cluster.shell import until
from e2e.kind.docker import Docker
from e2e.kind.kubectl import kubectl

_CONFIG = "/etc/cni/net.d/10-bridge.conflist"


def lay(docker: Docker) -> None:
    """Give every node that runs its configuration, and the way to the others' pods; a restart takes routes away."""
    until(_all_have_ranges, 60, "a node has no range of addresses for its pods")
    nodes = _nodes()
    for name, (_, own_range) in nodes.items():
        if not docker.works("exec", name, "true"):
            continue  # it is lost
        docker.execute(name, "cp", "/dev/stdin", _CONFIG, stdin=json.dumps(_bridge(own_range)))
        for other, (address, pods) in nodes.items():
            if other != name:
                docker.execute(name, "ip", "route", "replace", pods, "via", address)


def _bridge(pods: str) -> dict[str, object]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "e2e", "plugins": [bridge, ports]}


def _nodes() -> dict[str, tuple[str, str]]:
    """Each node's own address, and its pods' range."""
    found = {}
    for node in json.loads(kubectl("get", "nodes", "--output=json"))["items"]:
        addresses = [a["address"] for a in node["status"].get("addresses", []) if a["type"] == "InternalIP"]
        found[node["metadata"]["name"]] = (next(iter(addresses), ""), node["spec"].get("podCIDR", ""))
    return found


def _all_have_ranges() -> bool:
    return all(all(pair) for pair in _nodes().values())
