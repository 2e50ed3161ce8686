"""A cgroup for each node, in every hierarchy: without one of its own a kubelet cleans up the others' pods."""

from __future__ import annotations

import contextlib
from pathlib import Path

from e2e.cluster.places import CGROUP
from e2e.cluster.shell import until

_ROOT = Path("/sys/fs/cgroup")


def unified() -> bool:
    """Whether this machine has cgroup v2 alone."""
    return (_ROOT / "cgroup.controllers").exists()


def make(node: str) -> None:
    if unified():
        for folder in (_ROOT, _ROOT / CGROUP):
            folder.mkdir(exist_ok=True)
            for controller in (folder / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):  # some of the host's can't be delegated
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        (_ROOT / CGROUP / node).mkdir(exist_ok=True)
        return
    for hierarchy in _ROOT.iterdir():
        if hierarchy.is_dir() and not hierarchy.is_symlink() and hierarchy.name != "unified":
            (hierarchy / CGROUP / node).mkdir(parents=True, exist_ok=True)


def remove(node: str = "", cluster: str = CGROUP) -> None:
    """Remove a node's groups, or everybody's; the processes in them have just been killed."""
    until(lambda: not _remove(cluster, node), 20, f"processes of {node or 'the cluster'} still hold their cgroups")


def _remove(cluster: str, node: str) -> list[Path]:
    tops = [path for path in (_ROOT / cluster / node, *_ROOT.glob(f"*/{cluster}/{node}")) if path.is_dir()]
    for top in tops:
        for folder in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            top.rmdir()
    return [top for top in tops if top.exists()]
