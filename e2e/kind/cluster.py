"""The cluster itself: kind makes it, and it gets our images."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from e2e.cluster.containerd import LAYOUT
from e2e.cluster.images import BUILT as OUR_IMAGES
from e2e.cluster.places import BIN, REPOSITORY
from e2e.cluster.shell import ClusterError, run, say
from e2e.kind import config, node_image, node_network
from e2e.kind.docker import Docker
from e2e.kind.kubectl import kubectl, ready
from e2e.kind.places import AUDIT, CLUSTER, KUBECONFIG, NETWORK, NODES, SHARED, STATE, WORKERS

_OF_CLUSTER = f"--filter=label=io.x-k8s.kind.cluster={CLUSTER}"
_DNS = REPOSITORY / "e2e" / "cluster" / "dns.yaml"
_CTR = ("ctr", "--namespace=k8s.io")


def up(docker: Docker) -> None:
    if not _is_up(docker):
        delete(docker)
        _create(docker)
    if laid_by_hand():
        node_network.lay(docker)
        kubectl("apply", "--filename=-", stdin=_corefile())
    # A node that is lost takes its DNS with it, and tests lose the others.
    stay = {"spec": {"template": {"spec": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}}}}
    kubectl("--namespace=kube-system", "patch", "deployment/coredns", f"--patch={json.dumps(stay)}")
    kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=120s")
    kubectl("--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
    say(f"{len(NODES)} nodes and DNS ready")


def delete(docker: Docker) -> None:
    """Delete the cluster, or what of it was made: as kind would, but kind would look into ~/.kube too."""
    for container in docker.run("ps", "--all", "--quiet", _OF_CLUSTER).split():
        docker.run("rm", "--force", "--volumes", container)
    if docker.works("network", "inspect", NETWORK):
        docker.run("network", "rm", NETWORK)


def deliver(docker: Docker) -> None:
    """Give each worker those of our images that it lacks, and only the layers that it lacks."""
    missing = set(OUR_IMAGES) - set(LAYOUT.digests())
    if missing:
        raise ClusterError(f"no image {min(missing)} was made yet: run `python -m e2e.cluster images`")
    wanted = {name: digest for name, digest in LAYOUT.digests().items() if name in OUR_IMAGES}
    archives: dict[tuple[frozenset[str], frozenset[str]], Path] = {}  # workers mostly lack the same
    with tempfile.TemporaryDirectory(dir=STATE) as folder:
        for node in WORKERS:
            lines = [line.split() for line in docker.execute(node, *_CTR, "images", "list").splitlines()[1:]]
            there = {words[0]: words[2] for words in lines}
            lacking = frozenset(name for name, digest in wanted.items() if there.get(name) != digest)
            if not lacking:
                continue
            blobs = frozenset(docker.execute(node, *_CTR, "content", "list", "--quiet").split())
            archive = archives.setdefault((lacking, blobs), Path(folder, f"{len(archives)}.tar"))
            if not archive.exists():
                LAYOUT.archive(set(lacking), archive, set(blobs))
            docker.feed(node, archive, *_CTR, "images", "import", "-")
            say(f"{node} has {', '.join(sorted(lacking))}")


def states(docker: Docker) -> dict[str, str]:
    """Each node's container: running, exited, ... or absent."""
    lines = docker.run("ps", "--all", _OF_CLUSTER, "--format={{.Names}} {{.State}}").splitlines()
    found = dict(line.split() for line in lines)
    return {node: found.get(node, "absent") for node in NODES}


def laid_by_hand() -> bool:
    """Whether the pods' network is ours to lay."""
    made = json.loads((STATE / "kind.json").read_text())
    return bool(made["networking"].get("disableDefaultCNI"))


def _corefile() -> str:
    """kubeadm's asks for plugins that our build of CoreDNS doesn't have."""
    return next(part for part in _DNS.read_text().split("\n---\n") if "kind: ConfigMap" in part)


def _is_up(docker: Docker) -> bool:
    return set(states(docker).values()) == {"running"} and KUBECONFIG.exists() and ready()


def _create(docker: Docker) -> None:
    image = _kinds_image(docker)
    name = image or node_image.make(docker)
    SHARED.mkdir(parents=True, exist_ok=True)
    AUDIT.mkdir(parents=True, exist_ok=True)
    config.write_policy()
    file = config.write_cluster(name, own_image=not image, own_docker=docker.ours)
    say(f"creating a kind cluster from {name}")
    words = ("create", "cluster", f"--config={file}", f"--kubeconfig={KUBECONFIG}", "--retain", "--verbosity=1")
    run(BIN / "kind", *words, env=_environment(docker), log=STATE / "log" / "kind.log")


def _kinds_image(docker: Docker) -> str:
    """The image that kind brings by default, if it is there or can be pulled; else ""."""
    name = (BIN / "kind-image").read_text()
    if docker.ours:  # it has no way to a registry
        return ""
    return name if docker.works("image", "inspect", name) or docker.works("pull", name) else ""


def _environment(docker: Docker) -> dict[str, str]:
    return {**docker.environment, "KIND_EXPERIMENTAL_PROVIDER": "docker", "KIND_EXPERIMENTAL_DOCKER_NETWORK": NETWORK}
