"""What the cluster needs from the distribution."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from e2e.cluster.shell import ClusterError, run, say

# A program that tells that the package is there -> its name.
_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "unshare": "util-linux",
    "openssl": "openssl",
    "gcc": "gcc",
    "/usr/include/unistd.h": "libc6-dev",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
    "skopeo": "skopeo",
}


def require_root() -> None:
    """Raises ClusterError for anybody else."""
    if os.geteuid():
        raise ClusterError("nodes need namespaces, a bridge and mounts: run this as root")


def install() -> None:
    """Install whatever is missing."""
    missing = [package for program, package in _PACKAGES.items() if not _found(program)]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"install {', '.join(missing)} first: only Debian's packages are installed from here")
    say(f"installing {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq", env=environment, check=False)  # a foreign source that fails needn't matter
    run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", *missing, env=environment)


def _found(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None
