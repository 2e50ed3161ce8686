"""The host's side of the cluster's network: a bridge that every node is plugged into, and the routes."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster import settings
from e2e.cluster.places import (
    BRIDGE,
    FIRST,
    HOST_IP,
    MAX_NODES,
    SERVICE_RANGE,
    SETTINGS,
    node_ip,
    pod_range,
)
from e2e.cluster.shell import run, works
from e2e.kind import places as kind_places

_SETTINGS = {"net/ipv4/ip_forward": 1, **settings.MANY_FILES}
# Another container engine may have set the policy of FORWARD to DROP; bridged packets pass there too.
_RULES = [(direction, BRIDGE, "-j", "ACCEPT") for direction in ("-i", "-o")]
_SAVED = SETTINGS


def up() -> None:
    settings.raise_to(_SETTINGS, _SAVED)
    if not exists(BRIDGE):
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{HOST_IP}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for rule in _RULES:
        if not works("iptables", "-C", "FORWARD", *rule):
            run("iptables", "-I", "FORWARD", *rule)
    for number in range(1, MAX_NODES + 1):
        run("ip", "route", "replace", pod_range(number), "via", node_ip(number))
    run("ip", "route", "replace", SERVICE_RANGE, "via", node_ip(FIRST))


def down() -> None:
    for number in range(1, MAX_NODES + 1):
        unplug(number)
    for rule in _RULES:
        while works("iptables", "-D", "FORWARD", *rule):
            pass
    if exists(BRIDGE):
        run("ip", "link", "delete", BRIDGE)  # its routes go with it
    settings.restore(_SAVED, kind_places.SETTINGS)


def cable(number: int) -> str:
    """The host's end of a node's link."""
    return f"{BRIDGE}-{number}"


def plug(number: int, pid: int) -> None:
    """Give the network namespace of process `pid` an eth0 on the bridge; the node configures it."""
    run("ip", "link", "add", cable(number), "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "link", "set", cable(number), "master", BRIDGE, "up")


def unplug(number: int) -> None:
    if exists(cable(number)):
        run("ip", "link", "delete", cable(number))


def switch(number: int, *, on: bool) -> None:
    run("ip", "link", "set", cable(number), "up" if on else "down")


def is_on(number: int) -> bool:
    return exists(cable(number)) and "UP" in json.loads(run("ip", "-json", "link", "show", cable(number)))[0]["flags"]


def exists(link: str) -> bool:
    return Path("/sys/class/net", link).exists()
