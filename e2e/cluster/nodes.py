"""Nodes: start one, lose it, cut it off, bring it back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from e2e.cluster import certificates, cgroups, containerd, network, node_config
from e2e.cluster.control_plane import allow_many_files, kubectl
from e2e.cluster.daemons import Daemon
from e2e.cluster.places import FIRST, MAX_NODES, REPOSITORY, STATE, node_folder
from e2e.cluster.shell import ClusterError, say, until, write

_MADE = STATE / "made-folders.json"


class Node:
    def __init__(self, number: int) -> None:
        if not 1 <= number <= MAX_NODES:
            raise ClusterError(f"there is no node {number}: nodes are numbered from 1 to {MAX_NODES}")
        self.number = number
        self.name = f"node{number}"
        self.folder = node_folder(number)
        self._daemon = Daemon(self.name)

    @property
    def pid(self) -> int | None:
        """The node's first process, as the host numbers it."""
        return self._daemon.pid

    @property
    def state(self) -> str:
        if not self.folder.exists():
            return "absent"
        if not self.pid:
            return "lost"
        return "up" if network.is_on(self.number) else "partitioned"

    @property
    def socket(self) -> str:
        """The node's containerd, reached through the node's own view of the file system."""
        return f"/proc/{self.pid}/root{node_config.SOCKET}"

    def up(self) -> None:
        """Start it, or plug it in again; a node that is up stays as it is."""
        if self.state == "partitioned":
            network.switch(self.number, on=True)
        if self.pid:
            return
        certificates.prepare_node(self.number)
        if not (self.folder / "containerd").exists():
            containerd.clone_template(self.folder / "containerd")
        node_config.write_all(self.number)
        _make_mount_points()
        cgroups.make(self.name)
        network.unplug(self.number)
        allow_many_files()
        namespaces = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc")
        command = ["unshare", *namespaces, sys.executable, "-m", "e2e.cluster.pid1", str(self.number)]
        self._daemon.start(command, child=True, cwd=REPOSITORY)
        pid = self.pid
        if pid is None:
            self._daemon.require()
        else:
            network.plug(self.number, pid)

    def lose(self) -> None:
        """Cut its power: not a packet leaves it any more, then all of its processes are gone."""
        self._require_expendable("lost")
        self.end()

    def end(self) -> None:
        network.unplug(self.number)
        self._daemon.stop(signal.SIGKILL)
        cgroups.remove(self.name)

    def remove(self) -> None:
        """Take it out of the cluster for good."""
        self._require_expendable("removed")
        kubectl("delete", "node", self.name, "--ignore-not-found", "--wait=false")
        self.end()
        shutil.rmtree(self.folder)

    def partition(self) -> None:
        """Take its link down: its processes run on, and reach only each other and the disk."""
        self._require_expendable("cut off")
        if not self.pid:
            raise ClusterError(f"{self.name} is {self.state}: heal it before you cut it off")
        network.switch(self.number, on=False)

    def wait_ready(self) -> None:
        until(self._registered, 60, f"{self.name} doesn't register (see {self.folder / 'kubelet.log'})")
        kubectl("wait", "--for=condition=Ready", "node", self.name, "--timeout=60s")

    def _registered(self) -> bool:
        self._daemon.require()
        return bool(kubectl("get", "node", self.name, "--ignore-not-found", "--output=name"))

    def _require_expendable(self, what: str) -> None:
        if self.number == FIRST:
            raise ClusterError(
                f"{self.name} can't be {what}: the host reaches services through it, and DNS runs there; take another"
            )
        if not self.folder.exists():
            raise ClusterError(f"there is no {self.name}: `node add` makes one more")


def known() -> list[Node]:
    """Every node that was ever started since the last `down`."""
    return [node for node in map(Node, range(1, MAX_NODES + 1)) if node.folder.exists()]


def up(count: int) -> None:
    wanted = {node.number: node for node in [*known(), *map(Node, range(1, count + 1))]}
    for node in wanted.values():
        node.up()
    for node in wanted.values():
        node.wait_ready()
    say(f"{len(wanted)} nodes ready")


def add() -> Node:
    """One more node than there are: the first one that is missing. Raises ClusterError if none is."""
    node = next((node for node in map(Node, range(1, MAX_NODES + 1)) if not node.folder.exists()), None)
    if node is None:
        raise ClusterError(f"there are {MAX_NODES} nodes already, and no more can be added")
    node.up()
    node.wait_ready()
    return node


def down() -> None:
    for node in known():
        node.end()
    cgroups.remove()
    with contextlib.suppress(FileNotFoundError):
        for folder in reversed(json.loads(_MADE.read_text())):
            with contextlib.suppress(OSError):  # somebody else uses it by now
                os.rmdir(folder)
        _MADE.unlink()


def _make_mount_points() -> None:
    """Folders that must exist on the host for a node to mount over them; what was made is noted, for `down`."""
    made = json.loads(_MADE.read_text()) if _MADE.exists() else []
    for target in node_config.MOUNTS.values():
        for folder in reversed([Path(target), *Path(target).parents]):
            if not folder.exists():
                folder.mkdir()
                made.append(str(folder))
    write(_MADE, json.dumps(made))
