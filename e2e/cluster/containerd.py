"""Images into containerd: once into a template, which every new node gets as a copy made of hard links."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import node_config
from e2e.cluster.oci import Layout
from e2e.cluster.places import CACHE
from e2e.cluster.shell import ClusterError, run, until, works

LAYOUT = Layout(CACHE / "oci")
_TEMPLATE = CACHE / "template"
# What containerd writes in place; everything else it only adds and deletes.
_DATABASES = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")


def deliver(socket: str) -> list[str]:
    """Give the containerd behind `socket` each image of the layout that it lacks, and only the blobs that it lacks.

    Returns the images' names.
    """
    ctr = ("ctr", "--address", socket, "--namespace", "k8s.io")
    lines = [line.split() for line in run(*ctr, "images", "list").splitlines()[1:]]
    there = {words[0]: words[2] for words in lines}
    lacking = {name for name, digest in LAYOUT.digests().items() if there.get(name) != digest}
    if lacking:
        blobs = set(run(*ctr, "content", "list", "--quiet").split())
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            archive = Path(folder, "images.tar")
            LAYOUT.archive(lacking, archive, blobs)
            run(*ctr, "images", "import", "--snapshotter", "overlayfs", archive)
    return sorted(lacking)


def refresh_template() -> list[str]:
    with daemon(_TEMPLATE, _TEMPLATE / "root") as socket:
        return deliver(socket)


def clone_template(target: Path) -> None:
    """A containerd root for a new node."""
    root = _TEMPLATE / "root"
    if not root.exists():
        raise ClusterError("no images were made yet: run `python -m e2e.cluster images`")
    target.parent.mkdir(parents=True, exist_ok=True)
    links = "--link" if root.stat().st_dev == target.parent.stat().st_dev else "--reflink=auto"
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    run("cp", "--archive", links, root, partial)
    for database in _DATABASES:
        (partial / database).unlink()
        shutil.copy2(root / database, partial / database)
    partial.rename(target)  # whole, or not there: a node that has it never gets it again


@contextmanager
def daemon(folder: Path, root: Path) -> Iterator[str]:
    """A containerd that runs nothing, over the images below `root`, for as long as some are imported."""
    state = folder / "state"
    socket = str(state / "containerd.sock")
    config = node_config.write_containerd(
        folder / "containerd.toml",
        root=str(root),
        state=str(state),
        socket=socket,
        cni=folder / "cni",
        opt=folder / "opt",
    )
    log = folder / "containerd.log"
    with log.open("w") as output:
        process = subprocess.Popen(["containerd", "--config", config], stdout=output, stderr=output)
    try:
        answers = ("ctr", "--address", socket, "version")
        until(lambda: process.poll() is not None or works(*answers), 60, f"containerd doesn't answer (see {log})")
        if process.poll() is not None:
            raise ClusterError(f"containerd ended at once (see {log})")
        yield socket
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(state, ignore_errors=True)
