"""The images that tests run: built from `docker/` by buildah over a local base, without a registry."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from e2e.cluster import containerd, nodes, python_base, wheels
from e2e.cluster.containerd import LAYOUT
from e2e.cluster.node_config import PAUSE_IMAGE
from e2e.cluster.places import BIN, CACHE, IMAGES, REPOSITORY
from e2e.cluster.shell import run, say

PYTHON = "docker.io/library/python:e2e"  # neither torch nor trainmaster
PLAIN_TORCH = "docker.io/trainmaster/plain-torch:e2e"  # torch, but no trainmaster
OPERATOR = "docker.io/trainmaster/operator:e2e"
TRAINER = "docker.io/trainmaster/trainer:e2e"
COREDNS_IMAGE = "localhost/coredns:e2e"
_BUILT = (PYTHON, PLAIN_TORCH, OPERATOR, TRAINER)

_STORE = CACHE / "buildah"
_BUILDAH = ("buildah", f"--root={_STORE / 'root'}", f"--runroot={_STORE / 'run'}", "--storage-driver=overlay")


def make() -> None:
    """Build what changed, and bring it to every node."""
    CACHE.mkdir(parents=True, exist_ok=True)
    _build(PYTHON, IMAGES / "python.Dockerfile", python_base.folder())
    found = wheels.folder(PYTHON, in_base)
    operator, trainer = REPOSITORY / "docker/operator.Dockerfile", REPOSITORY / "docker/trainer.Dockerfile"
    _build(OPERATOR, operator, REPOSITORY, {"BASE": PYTHON})
    arguments = {"BASE": PYTHON, "TORCH": wheels.requirement(found)}
    _build(PLAIN_TORCH, trainer, REPOSITORY, arguments, wheels=found, target="torch")
    _build(TRAINER, trainer, REPOSITORY, arguments, wheels=found, target="trainer")
    run(*_BUILDAH, "rmi", "--prune", check=False)
    LAYOUT.keep_only({*_BUILT, PAUSE_IMAGE, COREDNS_IMAGE})
    deliver()
    print("\n".join(sizes()))


def make_system() -> None:
    """The two images without which no pod starts, or none finds another."""
    with tempfile.TemporaryDirectory() as folder:
        run("gcc", "-Os", "-static", "-s", "-o", f"{folder}/pause", IMAGES / "pause.c")
        LAYOUT.add(PAUSE_IMAGE, Path(folder), ["/pause"])
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(BIN / "coredns", folder)
        LAYOUT.add(COREDNS_IMAGE, Path(folder), ["/coredns"])


def deliver() -> None:
    """Bring every image to the template of new nodes, and to the nodes that are up."""
    for name in containerd.refresh_template():
        say(f"imported {name}")
    for node in nodes.known():
        if node.pid:
            containerd.deliver(node.socket)


def sizes() -> list[str]:
    """Uncompressed; layers that images share are counted with each."""
    return [f"{LAYOUT.size(name) / 1e6:8.0f} MB  {name}" for name in sorted(LAYOUT.digests())]


def _build(
    name: str,
    dockerfile: Path,
    context: Path,
    arguments: dict[str, str] | None = None,
    *,
    wheels: Path | None = None,
    target: str = "",
) -> None:
    say(f"building {name}")
    words = ["bud", "--isolation=chroot", "--network=host", "--layers", "--pull-never", f"--file={dockerfile}"]
    words += [f"--build-arg={key}={value}" for key, value in (arguments or {}).items()]
    words += [f"--volume={volume}" for volume in _volumes(wheels)]
    words += [f"--target={target}"] if target else []
    # The base keeps its times: Debian's bytecode is checked against them.
    words += ["--timestamp=0"] if arguments else []
    log = CACHE / f"build-{name.split('/')[-1].split(':')[0]}.log"
    run(*_BUILDAH, *words, f"--tag={name}", context, log=log)
    run(*_BUILDAH, "push", "--disable-compression", name, f"oci:{LAYOUT.folder}:{name}")


def in_base(command: list[str], folder: Path) -> None:
    """Run a command in the Python image, with `folder` at /wheels and the machine's way to packages."""
    container = run(*_BUILDAH, "from", "--pull-never", PYTHON).strip()
    try:
        volumes = [f"--volume={volume}" for volume in _volumes(folder, writable=True)]
        run(*_BUILDAH, "run", "--isolation=chroot", "--network=host", *volumes, container, "--", *command)
    finally:
        run(*_BUILDAH, "rm", container)


def _volumes(wheels: Path | None, *, writable: bool = False) -> list[str]:
    """What a build sees of this machine: its trust, and how it reaches packages. None of it stays in the image."""
    volumes = [f"{_pip_settings(wheels)}:/etc/pip.conf:ro", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    return [*volumes, f"{wheels}:/wheels:{'rw' if writable else 'ro'}"] if wheels else volumes


def _pip_settings(wheels: Path | None) -> Path:
    """This machine's settings of pip as one file: what its variables say and what its own files say."""
    settings = {}
    for line in run("python3", "-m", "pip", "config", "list", check=False).splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = value.strip("'\"")
    settings.pop("find-links", None)
    if wheels:
        settings["find-links"] = "/wheels"
    path = CACHE / ("pip-wheels.conf" if wheels else "pip.conf")
    path.write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in sorted(settings.items())), ""]))
    os.chmod(path, 0o600)
    return path
