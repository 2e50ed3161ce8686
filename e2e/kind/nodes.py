"""What happens to nodes: one is lost, cut off, healed; the API server restarts; a pod's processes are killed."""

from __future__ import annotations

from e2e.cluster.shell import ClusterError, until
from e2e.kind import node_network
from e2e.kind.cluster import laid_by_hand, states
from e2e.kind.docker import Docker
from e2e.kind.kubectl import kubectl, ready
from e2e.kind.places import CONTROL_PLANE, NODES

# Nothing that the node or its pods send leaves it any more, and nothing arrives; they reach each other.
_FENCE = (("PREROUTING", "--in-interface"), ("POSTROUTING", "--out-interface"))
_KILL = r"""
for process in /proc/[0-9]*; do
    if grep -q "pod$0" $process/cgroup && [ "$(cat $process/comm)" != pause ]; then
        kill -KILL ${process#/proc/} && echo ${process#/proc/}
    fi
done 2>/dev/null
"""


def lose(docker: Docker, node: str) -> None:
    """Cut its power: all of its processes are gone at once."""
    _require_expendable(node)
    docker.run("kill", node)


def partition(docker: Docker, node: str) -> None:
    """Cut its link: its processes run on, and reach only each other and the disk."""
    _require_expendable(node)
    for chain, direction in _FENCE:
        docker.execute(node, "iptables", "-t", "mangle", "-I", chain, direction, "eth0", "-j", "DROP")


def heal(docker: Docker, node: str) -> None:
    """Undo either; a node that is well stays as it is."""
    if states(docker).get(node) != "running":
        docker.run("start", node)
    for chain, direction in _FENCE:
        rule = (chain, direction, "eth0", "-j", "DROP")
        while docker.works("exec", node, "iptables", "-t", "mangle", "-D", *rule):
            pass
    if laid_by_hand():
        node_network.lay(docker)
    kubectl("wait", "--for=condition=Ready", "node", node, "--timeout=120s")


def restart_api_server(docker: Docker) -> None:
    """Kill it; its kubelet starts it again."""
    before = _api_server(docker)
    docker.execute(CONTROL_PLANE, "kill", "-KILL", before)
    until(lambda: _api_server(docker) not in ("", before) and ready(), 120, "the API server isn't back")


def kill_pod(docker: Docker, node: str, uid: str) -> None:
    """SIGKILL to every process of a pod's containers."""
    either = uid.replace("-", "[-_]")  # as the cgroup driver writes it
    if not docker.execute(node, "sh", "-c", _KILL, either).split():
        raise ClusterError(f"no process of pod {uid} was found on {node}")


def _api_server(docker: Docker) -> str:
    found = docker.execute(CONTROL_PLANE, "sh", "-c", "pgrep -x kube-apiserver || true").split()
    return found[0] if found else ""


def _require_expendable(node: str) -> None:
    if node not in NODES:
        raise ClusterError(f"there is no node {node}: they are {', '.join(NODES)}")
    if node == CONTROL_PLANE:
        raise ClusterError(f"{node} can't be lost: the API server and DNS run there; take another")
