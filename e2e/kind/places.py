"""Where a kind cluster's things lie, and what they are called."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.places import CACHE

CLUSTER = "trainmaster-e2e"
CONTROL_PLANE = f"{CLUSTER}-control-plane"
WORKERS = (f"{CLUSTER}-worker", f"{CLUSTER}-worker2")
NODES = (CONTROL_PLANE, *WORKERS)
NETWORK = "trainmaster-e2e"  # of docker: not the one that other kind clusters share

STATE = Path("/var/lib/trainmaster-kind")  # gone after `down`
KUBECONFIG = STATE / "admin.conf"
SHARED = STATE / "shared"  # every node has it under the same name
AUDIT = STATE / "audit"
AUDIT_LOG = AUDIT / "audit.log"
SETTINGS = STATE / "settings.json"

BUILT = CACHE / "kind"  # the node image's root, and the docker that holds it

# The link between this machine and the network namespace of a docker of our own.
CABLE = "tm-kind"
HOST_IP = "172.30.255.1"
DOCKER_IP = "172.30.255.2"
PREFIX = 30
API_PORT = 6443
CGROUP = "trainmaster-kind"
