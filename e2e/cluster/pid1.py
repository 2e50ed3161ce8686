"""The first process of a node: `python -m e2e.cluster.pid1 N`, inside the node's namespaces.

It lays out the node's own mounts and network, then keeps containerd, kubelet and kube-proxy running. Killing it
kills everything on the node.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster.node_config import MOUNTS, SOCKET
from e2e.cluster.places import BIN, HOST_IP, MAX_NODES, STATE, node_folder, node_ip, pod_range
from e2e.cluster.shell import run, until, works

_RESTART_S = 1.0


def main(number: int) -> None:
    folder = node_folder(number)
    run("hostname", f"node{number}")
    _mount(folder)
    _connect(number)
    commands: dict[str, list[str | Path]] = {
        "containerd": ["containerd", "--config", folder / "etc/containerd.toml"],
        "kubelet": [
            BIN / "kubelet",
            f"--config={folder / 'etc/kubelet.json'}",
            f"--kubeconfig={STATE / 'conf' / f'node{number}.conf'}",
            f"--hostname-override=node{number}",
            f"--node-ip={node_ip(number)}",
        ],
        "kube-proxy": [BIN / "kube-proxy", f"--config={folder / 'etc/proxy.json'}"],
    }
    running = {}
    for name, command in commands.items():
        running[_start(folder, name, command)] = name
        if name == "containerd":
            until(lambda: works("ctr", "--address", SOCKET, "version"), 60, "containerd doesn't answer")
    while True:  # as any first process: adopted orphans are reaped, daemons started again
        pid, _ = os.wait()
        if pid in running:
            time.sleep(_RESTART_S)
            name = running.pop(pid)
            running[_start(folder, name, commands[name])] = name


def _mount(folder: Path) -> None:
    run("mount", "--make-rshared", "/")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    Path("/run/lock").mkdir()
    for name, target in MOUNTS.items():
        run("mount", "--bind", folder / name, target)
    run("mount", "--make-rshared", MOUNTS["kubelet"])


def _connect(number: int) -> None:
    until(lambda: works("ip", "link", "show", "eth0"), 30, "the node was never plugged into the bridge")
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{node_ip(number)}/24", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", "default", "via", HOST_IP)
    for other in range(1, MAX_NODES + 1):
        if other != number:
            run("ip", "route", "add", pod_range(other), "via", node_ip(other))
    for setting in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
        path = Path("/proc/sys/net", setting)
        if path.exists():
            path.write_text("1")


def _start(folder: Path, name: str, command: list[str | Path]) -> int:
    with (folder / f"{name}.log").open("a") as log:
        words = [str(word) for word in command]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True).pid


if __name__ == "__main__":
    main(int(sys.argv[1]))
