"""The images that tests run: built from `docker/` by buildah over a local base, without a registry."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.cluster import containerd, nodes, python_base, wheels
from e2e.cluster.alone import alone
from e2e.cluster.containerd import LAYOUT
from e2e.cluster.node_config import PAUSE_IMAGE
from e2e.cluster.oci import ARCHITECTURES
from e2e.cluster.places import BIN, CACHE, IMAGES, REPOSITORY
from e2e.cluster.shell import ClusterError, run, say, works, write

PYTHON = "docker.io/library/python:e2e"  # neither torch nor trainmaster
PLAIN_TORCH = "docker.io/trainmaster/plain-torch:e2e"  # torch, but no trainmaster
OPERATOR = "docker.io/trainmaster/operator:e2e"
TRAINER = "docker.io/trainmaster/trainer:e2e"
OTHER_TORCH = "docker.io/trainmaster/other-torch:e2e"  # TRAINER with another torch; built on request only
COREDNS_IMAGE = "localhost/coredns:e2e"
BUILT = (PYTHON, PLAIN_TORCH, OPERATOR, TRAINER)
VALUES: dict[str, Any] = {
    "image": {"repository": OPERATOR.rpartition(":")[0], "tag": OPERATOR.rpartition(":")[2]},
    "trainerImage": {"repository": TRAINER.rpartition(":")[0], "tag": TRAINER.rpartition(":")[2]},
}
"""The chart's values that install the images which nodes have."""

_STORE = CACHE / "buildah"
_BUILDAH = ("buildah", f"--root={_STORE / 'root'}", f"--runroot={_STORE / 'run'}", "--storage-driver=overlay")
# buildah and skopeo note there what they copied, and take a lock there, wherever their store is.
_STRAY = (Path("/var/lib/containers"), Path("/etc/cni"))


def make() -> None:
    """Build what changed."""
    with _building():
        _remove_leftovers()
        _make()
    print("\n".join(sizes()))


@contextmanager
def _building() -> Iterator[None]:
    """Build alone, and leave nothing outside of the store."""
    with alone("images"), no_strays():
        try:
            yield
        finally:
            works("umount", _STORE / "root" / "overlay")  # buildah mounts it over itself, and leaves it so


@contextmanager
def no_strays() -> Iterator[None]:
    """Remove what buildah and skopeo leave outside of their store, if it was not there before."""
    stray = [folder for folder in _STRAY if not folder.exists()]
    try:
        yield
    finally:
        for folder in stray:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers() -> None:
    """Remove the working containers, and their mounts, of a build that was ended early. Images and layers stay: the
    next build finds its finished stages among them."""
    run(*_BUILDAH, "rm", "--all")


def _make() -> None:
    _make_python(python_base.folder())
    found = wheels.folder(in_base)
    arguments = {"BASE": PYTHON, "TORCH": wheels.requirement(found)}
    volumes = (f"{found.parent}:{wheels.MOUNT}:ro",)
    # The stages that others copy from have names of their own: what has none is pruned, and would be built again.
    for name, dockerfile, target in (
        ("localhost/operator-build:e2e", "operator", "build"),
        (OPERATOR, "operator", "operator"),
        (PLAIN_TORCH, "trainer", "torch"),
        ("localhost/trainer-build:e2e", "trainer", "build"),
        (TRAINER, "trainer", "trainer"),
    ):
        path = REPOSITORY / "docker" / f"{dockerfile}.Dockerfile"
        # Times that are always the same, but for the base: Debian's bytecode is checked against them.
        _build(name, path, REPOSITORY, arguments, "--timestamp=0", f"--target={target}", volumes=volumes)
    run(*_BUILDAH, "rmi", "--prune", check=False)
    for name in BUILT:
        _copy_to_layout(name)
    LAYOUT.keep_only({*BUILT, PAUSE_IMAGE, COREDNS_IMAGE})


def make_other_torch(wheel: Path) -> None:
    """Build the image with another torch than the one that is pinned. The next `make` forgets it."""
    if not wheel.name.startswith("torch-") or not wheel.is_file():
        raise ClusterError(f"{wheel} is no wheel of torch")
    with _building():
        volumes = (f"{wheel.resolve().parent}:{wheels.MOUNT}:ro",)
        arguments = {"BASE": TRAINER, "WHEEL": wheel.name}
        _build(OTHER_TORCH, IMAGES / "other-torch.Dockerfile", IMAGES, arguments, volumes=volumes)
        _copy_to_layout(OTHER_TORCH)


def publish(registry: str, tag: str, values: Path) -> None:
    """Push both images to a registry without TLS by `make images`, which writes the file `values`.

    The layers that `make` has built are found again.
    """
    with _building():
        found = wheels.folder(in_base)
        volumes = [f"--volume={volume}" for volume in (*_volumes(), f"{found.parent}:{wheels.MOUNT}:ro")]
        # An image that a node has and also pulls has one ID, unless something differs. The kubelet would then ask a
        # registry for the name that it has only here too (KubeletEnsureSecretPulledImages, Kubernetes 1.35).
        label = f"--label=org.opencontainers.image.version={tag}"
        options = ("--isolation=chroot", "--network=host", "--pull-never", "--timestamp=0", label, *volumes)
        variables = {
            "REGISTRY": registry,
            "TAG": tag,
            "VALUES": values,
            "PLAIN_HTTP": 1,
            "PLATFORMS": f"linux/{ARCHITECTURES[platform.machine()]}",
            "BASE": PYTHON,
            "TORCH": wheels.requirement(found),
            "BUILDER": " ".join(_BUILDAH),
            "BUILD_OPTIONS": " ".join(options),
        }
        words = [f"{key}={value}" for key, value in variables.items()]
        # The layers of torch, which are nearly all of the bytes: `make images` finds them in the registry, and does not
        # compress them for a minute as `buildah manifest push` does, which knows no level.
        fast = ("--tls-verify=false", "--compression-format=gzip", "--compression-level=1")
        run(*_BUILDAH, "push", *fast, PLAIN_TORCH, f"docker://{registry}/layers:{tag}", log=CACHE / "push-layers.log")
        try:
            run("make", "--silent", "images", *words, cwd=REPOSITORY, log=CACHE / "build-publish.log")
        finally:
            for image in ("operator", "trainer"):
                run(*_BUILDAH, "manifest", "rm", f"{registry}/{image}:{tag}", check=False)


def _copy_to_layout(name: str) -> None:
    source = f"containers-storage:[overlay@{_STORE / 'root'}+{_STORE / 'run'}]{name}"
    run("skopeo", "copy", "--dest-oci-accept-uncompressed-layers", source, f"oci:{LAYOUT.folder}:{name}")


def _make_python(base: Path) -> None:
    """Build the base's image unless the present one is of it: buildah would read its 150 MB to find them the same."""
    stamp = _STORE / "python"
    if stamp.exists() and stamp.read_text() == base.name and works(*_BUILDAH, "inspect", "--type=image", PYTHON):
        return
    _build(PYTHON, IMAGES / "python.Dockerfile", base)
    write(stamp, base.name)


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


def write_values(state: Path) -> Path:
    """Write the chart's values for these images into a cluster's folder, and return the file. JSON is YAML."""
    return write(state / "values.yaml", json.dumps(VALUES, indent=2) + "\n")


def install_command(state: Path) -> str:
    """Return the command that installs the chart with the images of a cluster's nodes."""
    return (
        "helm install trainmaster charts/trainmaster --namespace trainmaster-system --create-namespace "
        f"--values {write_values(state)}"
    )


def sizes() -> list[str]:
    """Uncompressed; layers that images share are counted with each."""
    return [f"{LAYOUT.size(name) / 1e6:8.0f} MB  {name}" for name in sorted(LAYOUT.digests())]


def _build(
    name: str,
    dockerfile: Path,
    context: Path,
    arguments: dict[str, str] | None = None,
    *options: str,
    volumes: tuple[str, ...] = (),
) -> None:
    say(f"building {name}")
    words = ["--isolation=chroot", "--network=host", "--layers", "--pull-never", f"--file={dockerfile}", *options]
    words += [f"--build-arg={key}={value}" for key, value in (arguments or {}).items()]
    words += [f"--volume={volume}" for volume in (*_volumes(), *volumes)]
    log = CACHE / f"build-{name.split('/')[-1].split(':')[0]}.log"
    run(*_BUILDAH, "bud", *words, f"--tag={name}", context, log=log)


def in_base(command: list[str], wheels_folder: Path) -> None:
    """Run a command in the Python image, with the machine's way to packages."""
    container = run(*_BUILDAH, "from", "--pull-never", PYTHON).strip()
    try:
        volumes = [f"--volume={volume}" for volume in (*_volumes(), f"{wheels_folder}:{wheels.MOUNT}")]
        run(*_BUILDAH, "run", "--isolation=chroot", "--network=host", *volumes, container, "--", *command)
    finally:
        run(*_BUILDAH, "rm", container)


def _volumes() -> list[str]:
    """What a build sees of this machine: its trust, and how it reaches packages. None of it stays in the image."""
    return [f"{_pip_settings()}:/etc/pip.conf:ro", "/etc/ssl/certs:/etc/ssl/certs:ro"]


def _pip_settings() -> Path:
    """This machine's settings of pip as one file: what its variables say and what its own files say."""
    settings = {}
    lines = run("python3", "-m", "pip", "config", "list", check=False).splitlines()
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):  # a variable wins over a file
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = value.strip("'\"")
    settings.pop("find-links", None)  # folders of this machine
    lines = ["[global]", *(f"{key} = {value}" for key, value in sorted(settings.items())), ""]
    return write(CACHE / "pip.conf", "\n".join(lines), mode=0o600)
