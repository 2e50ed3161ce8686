"""Pods' network where kind's own can't be pulled: a bridge on each node, and routes between the nodes."""

from __future__ import annotations

import json

from e2e.cluster.shell import until
from e2e.kind.docker import Docker
from e2e.kind.kubectl import kubectl

_ADDRESS = "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
_CONFIG = "/etc/cni/net.d/10-bridge.conflist"


def lay(docker: Docker) -> None:
    """Give every node that runs its configuration, and the way to the others' pods; a restart takes routes away."""
    until(lambda: all(_ranges().values()), 60, "a node has no range of addresses for its pods")
    ranges = _ranges()
    addresses = {name: docker.run("inspect", _ADDRESS, name).strip() for name in ranges}  # a restart may change them
    running = [name for name, address in addresses.items() if address]
    for name in running:
        docker.execute(name, "cp", "/dev/stdin", _CONFIG, stdin=json.dumps(_bridge(ranges[name])))
        for other in running:
            if other != name:
                docker.execute(name, "ip", "route", "replace", ranges[other], "via", addresses[other])


def _bridge(pods: str) -> dict[str, object]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "e2e", "plugins": [bridge, ports]}


def _ranges() -> dict[str, str]:
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    return {node["metadata"]["name"]: node["spec"].get("podCIDR", "") for node in nodes}
