"""Kubernetes, etcd, CoreDNS, kwok, helm and kind, built from pinned Go modules and cached until those change."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.alone import alone
from e2e.cluster.places import BIN, CACHE, TOOLS
from e2e.cluster.shell import ClusterError, run, say, write

Builder = Callable[[str, Path, Path, dict[str, str]], None]
_BUILD = ("build", "-trimpath", "-buildvcs=false", "-ldflags")
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def build(*names: str) -> None:
    """Build what is missing of these, or was built from another module than the present one.

    Two commands that need the same program build it once. Other commands, such as one that builds images, go on.
    """
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise ClusterError("no Go toolchain was found: install Go 1.26 or newer and put `go` on the PATH")
    with alone("binaries"):
        for name in names:
            _build(go, name, *_MODULES[name])


def version(name: str, package: str) -> str:
    """The version that a module's go.mod requires."""
    for line in (TOOLS / name / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == [package]:
            return words[1]
    raise ClusterError(f"e2e/tools/{name}/go.mod doesn't require {package}")


def _build(go: str, name: str, duration: str, compile: Builder) -> None:
    module = TOOLS / name
    environment = {**os.environ, "GOFLAGS": "", "CGO_ENABLED": "0"}
    key = hashlib.sha256(run(go, "version").encode())
    for path in sorted(p for p in module.rglob("*") if p.is_file()):
        key.update(path.read_bytes())
    stamp = BIN / f".{name}"
    if stamp.exists() and stamp.read_text() == key.hexdigest():
        return
    say(f"building {name} from its Go module: {duration} the first time")
    fresh = CACHE / f"bin-{name}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    compile(go, module, fresh, environment)
    BIN.mkdir(exist_ok=True)
    stamp.unlink(missing_ok=True)
    for path in fresh.iterdir():
        old = BIN / path.name
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        path.replace(old)  # not over the old one: a running program's file can't be written
    fresh.rmdir()
    stamp.write_text(key.hexdigest())


def fingerprint(name: str) -> str:
    """What tells this build of a module from any other."""
    return (BIN / f".{name}").read_text()


def _kubernetes(go: str, module: Path, out: Path, environment: dict[str, str]) -> None:
    words = (*_BUILD, f"-s -w {_version_of_kubernetes('kubernetes')}", "-o", f"{out}/", "tool", "./coredns")
    run(go, *words, cwd=module, env=environment, log=CACHE / "build-kubernetes.log")
    (out / "server").rename(out / "etcd")
    source = run(go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok", cwd=module, env=environment).strip()
    shutil.copytree(Path(source, "kustomize", "stage"), out / "kwok-stages")
    run("chmod", "-R", "u+w", out / "kwok-stages")  # Go's module cache is read-only


def _helm(go: str, module: Path, out: Path, environment: dict[str, str]) -> None:
    flags = f"-s -w -X helm.sh/helm/v3/internal/version.version={version('helm', 'helm.sh/helm/v3')}"
    words = (*_BUILD, flags, "-o", f"{out}/", "tool")
    run(go, *words, cwd=module, env=environment, log=CACHE / "build-helm.log")


def _kind(go: str, module: Path, out: Path, environment: dict[str, str]) -> None:
    words = (*_BUILD, f"-s -w {_version_of_kubernetes('kind')}", "-o", f"{out}/", "tool")
    run(go, *words, cwd=module, env=environment, log=CACHE / "build-kind.log")
    source = run(go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kind", cwd=module, env=environment).strip()
    shutil.copytree(Path(source, "images", "base", "files"), out / "kind-base-files")
    run("chmod", "-R", "u+w", out / "kind-base-files")
    default = re.search(r'const Image = "(.*)"', Path(source, "pkg/apis/config/defaults/image.go").read_text())
    write(out / "kind-image", default[1] if default else "")


def _version_of_kubernetes(name: str) -> str:
    """What the linker is told: without a version all of Kubernetes' programs panic."""
    number = version(name, "k8s.io/kubernetes")
    values = {"gitVersion": number, "gitMajor": "1", "gitMinor": number.split(".")[1], "gitTreeState": "clean"}
    return " ".join(f"-X {p}.{name}={value}" for p in _VERSION_PACKAGES for name, value in values.items())


_MODULES: dict[str, tuple[str, Builder]] = {
    "kubernetes": ("about ten minutes on two cores", _kubernetes),
    "helm": ("about two minutes", _helm),
    "kind": ("about a minute, once Kubernetes was built", _kind),
}
