"""The clusters that tests run on, and the machine below those that were made here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.cluster import places
from e2e.kind import places as kind_places


class Machine(Protocol):
    """What can be done to the nodes of a cluster that was made here."""

    steady: str
    """The node that can't be lost: it carries what the others need."""
    audit_log: Path

    def lose(self, node: str) -> None:
        """Everything on the node dies at once."""

    def partition(self, node: str) -> None:
        """The node is cut off; what runs on it runs on."""

    def heal(self, node: str) -> None: ...

    def restart_api_server(self) -> None: ...

    def kill_pod(self, node: str, uid: str) -> None:
        """SIGKILL to every process of the pod's containers at once."""


class Own:
    """By `python -m e2e.cluster`."""

    steady = f"node{places.FIRST}"
    audit_log = places.AUDIT_LOG

    def lose(self, node: str) -> None:
        cluster("node", "lose", node.removeprefix("node"))

    def partition(self, node: str) -> None:
        cluster("node", "partition", node.removeprefix("node"))

    def heal(self, node: str) -> None:
        cluster("node", "heal", node.removeprefix("node"))

    def restart_api_server(self) -> None:
        cluster("apiserver", "restart")

    def kill_pod(self, node: str, uid: str) -> None:
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _in_pod(path, uid)]
        assert pids, f"no process of pod {uid} was found on this machine"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Kind:
    """By `python -m e2e.kind`."""

    steady = kind_places.CONTROL_PLANE
    audit_log = kind_places.AUDIT_LOG

    def lose(self, node: str) -> None:
        _run("e2e.kind", "node", "lose", node)

    def partition(self, node: str) -> None:
        _run("e2e.kind", "node", "partition", node)

    def heal(self, node: str) -> None:
        _run("e2e.kind", "node", "heal", node)

    def restart_api_server(self) -> None:
        _run("e2e.kind", "apiserver", "restart")

    def kill_pod(self, node: str, uid: str) -> None:
        _run("e2e.kind", "pod", "kill", node, uid)


@dataclass(frozen=True)
class Site:
    """A cluster, and what of it is within the tests' reach."""

    kubeconfig: Path
    shared: Path | None
    """A folder that all nodes have under the same name, and this machine too."""
    machine: Machine | None


OWN = Site(places.KUBECONFIG, places.STATE / "shared", Own())
KIND = Site(kind_places.KUBECONFIG, kind_places.SHARED, Kind())


def site(name: str) -> Site:
    """`own`, `kind`, or `current`: what KUBECONFIG says, with the shared folder that E2E_SHARED names, if any."""
    if name == "current":
        shared = os.environ.get("E2E_SHARED")
        kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        return Site(kubeconfig, Path(shared).resolve() if shared else None, None)
    return {"own": OWN, "kind": KIND}[name]


def cluster(*arguments: str) -> None:
    """Run our own cluster's program. Fails the test with its own sentence."""
    _run("e2e.cluster", *arguments)


def _run(program: str, *arguments: str) -> None:
    command = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(command, cwd=places.REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")


def _in_pod(process: Path, uid: str) -> bool:
    """Whether a process lies in a pod's cgroup, and is not its pause process."""
    try:
        return f"pod{uid}" in (process / "cgroup").read_text() and (process / "comm").read_text().strip() != "pause"
    except OSError:
        return False
