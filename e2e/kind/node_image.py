"""A node image like kind's own, made here: Debian with systemd, kind's files for it, and our build of Kubernetes.

Where images can be pulled nobody needs it. It holds the images of the control plane under the names that kubeadm asks
for, and not kind's network and storage, which are pulled from a registry.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster import binaries, containerd, python_base
from e2e.cluster.oci import Layout
from e2e.cluster.places import BIN, IMAGES
from e2e.cluster.shell import ClusterError, discard, run, say, write
from e2e.kind.docker import Docker
from e2e.kind.places import BUILT

_MAKING = BUILT / "making"
_REPOSITORY = "trainmaster-e2e/kind-node"
_PACKAGES = (  # as kind's own image has them; curl, NFS and iSCSI are for tests that aren't ours
    *("systemd", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux", "mount", "kmod"),
    *("libseccomp2", "e2fsprogs", "bash", "ca-certificates", "jq", "procps"),
    *("containerd", "runc", "containernetworking-plugins"),
)
_UNITS = ("kubelet", "containerd", "undo-mount-hacks")
_UNWANTED = (  # they would manage the machine, as systemd does on one of its own
    "usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "usr/lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "usr/lib/systemd/system/local-fs.target.wants/*",
    "usr/lib/systemd/system/sockets.target.wants/*udev*",
    "usr/lib/systemd/system/sockets.target.wants/*initctl*",
    "usr/lib/systemd/system/basic.target.wants/*",
)
_WASTE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log", "dev")
_ENTRYPOINT = '["/usr/local/bin/entrypoint", "/sbin/init"]'


def make(docker: Docker) -> str:
    """The image's name. It is made once for each build of Kubernetes and of kind."""
    binaries.build("kubernetes")
    parts = (binaries.fingerprint("kubernetes"), binaries.fingerprint("kind"), Path(__file__).read_text())
    name = f"{_REPOSITORY}:{hashlib.sha256(''.join(parts).encode()).hexdigest()[:16]}"
    if docker.works("image", "inspect", name):
        return name
    say("making a node image: a minute or two")
    discard(_MAKING)
    _MAKING.mkdir(parents=True)
    root, archive = _MAKING / "root", _MAKING / "root.tar"
    _unpack_debian(root)
    _add_files(root)
    _add_images(root)
    waste = [f"--exclude=./{place}/*" for place in _WASTE]
    run("tar", "--create", "--numeric-owner", *waste, "--file", archive, "--directory", root, ".")
    for old in docker.run("image", "ls", "--quiet", _REPOSITORY).split():
        docker.run("image", "rm", "--force", old)
    changes = (f"--change=ENTRYPOINT {_ENTRYPOINT}", "--change=ENV container=docker")
    docker.run("import", *changes, archive, name)
    discard(_MAKING)
    return name


def _unpack_debian(root: Path) -> None:
    base = BUILT / f"debian-{hashlib.sha256(repr(_PACKAGES).encode()).hexdigest()[:8]}.tar"
    root.mkdir()
    if base.exists():
        run("tar", "--extract", "--numeric-owner", "--file", base, "--directory", root)
        return
    python_base.debootstrap(root, _PACKAGES, BUILT / "debootstrap.log")
    partial = base.with_suffix(".partial")
    run("tar", "--create", "--numeric-owner", "--file", partial, "--directory", root, ".")
    partial.rename(base)


def _add_files(root: Path) -> None:
    """What kind's Dockerfile does to Debian."""
    for pattern in _UNWANTED:
        for path in root.glob(pattern):
            path.unlink()
    for path in (BIN / "kind-base-files").rglob("*"):
        if path.is_file():
            target = root / path.relative_to(BIN / "kind-base-files")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o755 if target.parent.name == "bin" else 0o644)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for unit in _UNITS:
        (wants / f"{unit}.service").symlink_to(f"/etc/systemd/system/{unit}.service")
    (root / "etc/systemd/system/systemd-binfmt.service").symlink_to("/dev/null")  # its table is the whole machine's
    with (root / "etc/systemd/journald.conf").open("a") as file:
        file.write("ReadKMsg=no\n")
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    (root / "sbin/init").symlink_to("/usr/lib/systemd/systemd")
    (root / "usr/local/bin/containerd").symlink_to("/usr/bin/containerd")
    (root / "opt/cni").mkdir(parents=True)
    (root / "opt/cni/bin").symlink_to("/usr/lib/cni")
    for program in ("kubelet", "kubeadm", "kubectl"):
        shutil.copy(BIN / program, root / "usr/bin")
    write(root / "kind/version", binaries.version("kubernetes", "k8s.io/kubernetes"))
    _configure_containerd(root)


def _configure_containerd(root: Path) -> None:
    config = root / "etc/containerd/config.toml"
    text = config.read_text()
    write(config, text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true"))
    spec = json.loads(run("ctr", "oci", "spec"))
    spec["process"].pop("rlimits", None)
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append({"path": "/kind/bin/mount-product-files.sh"})
    write(root / "etc/containerd/cri-base.json", json.dumps(spec))


def _add_images(root: Path) -> None:
    layout = Layout(_MAKING / "layout")
    for name in _wanted(root):
        folder = _MAKING / "image"
        folder.mkdir()
        layout.add(name, folder, _fill(name, folder, root))
        shutil.rmtree(folder)
    archive = _MAKING / "images.tar"
    layout.archive(set(layout.digests()), archive, set())
    (_MAKING / "containerd").mkdir()
    with containerd.daemon(_MAKING / "containerd", root / "var/lib/containerd") as socket:
        run("ctr", "--address", socket, "--namespace=k8s.io", "images", "import", "--no-unpack", archive)


def _wanted(root: Path) -> list[str]:
    """The names that kubeadm and the node's containerd ask for."""
    version = (root / "kind/version").read_text()
    names = run(BIN / "kubeadm", "config", "images", "list", f"--kubernetes-version={version}").split()
    pause = re.search(r'sandbox_image = "(.*)"', (root / "etc/containerd/config.toml").read_text())
    if pause is None:
        raise ClusterError("kind's configuration of containerd names no sandbox image")
    return [*(name for name in names if "/pause:" not in name), pause[1]]


def _fill(name: str, image: Path, node: Path) -> list[str]:
    """Lay an image's files into `image`; the programs that it needs besides ours are the node's. Its command."""
    program = name.rpartition("/")[2].partition(":")[0]
    if program == "pause":
        run("gcc", "-Os", "-static", "-s", "-o", image / "pause", IMAGES / "pause.c")
        return ["/pause"]
    place = image / ("coredns" if program == "coredns" else f"usr/local/bin/{program}")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(BIN / program, place)
    if program == "kube-proxy":
        _copy_programs(("usr/sbin/xtables-nft-multi", "usr/sbin/conntrack"), node, image)
        for word in ("iptables", "iptables-save", "iptables-restore"):
            for prefix in ("", "6"):
                (image / "usr/sbin" / word.replace("ip", f"ip{prefix}")).symlink_to("xtables-nft-multi")
    return [f"/{place.relative_to(image)}"]


def _copy_programs(programs: Iterable[str], node: Path, image: Path) -> None:
    """Copy programs, and the libraries that they are linked with or load."""
    extensions = [str(path.relative_to(node)) for path in node.glob("usr/lib/*/xtables/*.so")]
    files = {*programs, *extensions}
    linked = run("chroot", node, "ldd", *(f"/{name}" for name in sorted(files)))
    files |= set(re.findall(r"(?:=> |\t)/(\S+)", linked))
    for name in files:
        target = image / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(node / name, target)
