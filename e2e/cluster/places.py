"""Where everything lies, and the addresses that the cluster uses."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = REPOSITORY / "e2e" / "tools"
IMAGES = REPOSITORY / "e2e" / "images"

STATE = Path("/var/lib/trainmaster-e2e")  # gone after `down`
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmaster-e2e"  # stays
BIN = CACHE / "bin"

PKI = STATE / "pki"
LOGS = STATE / "log"
KUBECONFIG = STATE / "admin.conf"
AUDIT_LOG = STATE / "audit.log"
SETTINGS = STATE / "settings.json"

BRIDGE = "tm-e2e"
HOST_IP = "172.30.0.1"
API_PORT = 6443
ETCD_PORT = 12379
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_IP = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"
DOMAIN = "cluster.local"
CGROUP = "trainmaster-e2e"

MAX_NODES = 9
FIRST = 1
"""The node through which the host reaches services, and on which the cluster's DNS runs: it can't be lost."""


def node_ip(number: int) -> str:
    return f"172.30.0.{10 + number}"


def pod_range(number: int) -> str:
    return f"10.244.{number}.0/24"


def node_folder(number: int) -> Path:
    return STATE / f"node{number}"
