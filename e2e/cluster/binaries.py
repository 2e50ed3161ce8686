"""Kubernetes, etcd, CoreDNS, kwok and helm, built from pinned Go modules and cached until those change."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.places import BIN, CACHE, TOOLS
from e2e.cluster.shell import ClusterError, run, say

Builder = Callable[[str, Path, Path, dict[str, str]], None]
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def build() -> None:
    """Build whatever is missing or older than its module."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise ClusterError("no Go toolchain was found: install Go 1.26 or newer and put `go` on the PATH")
    _build(go, "kubernetes", "about ten minutes on two cores", _kubernetes)
    _build(go, "helm", "about two minutes", _helm)


def _pinned(name: str, package: str) -> str:
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


def _kubernetes(go: str, module: Path, out: Path, environment: dict[str, str]) -> None:
    number = _pinned("kubernetes", "k8s.io/kubernetes")
    minor = number.split(".")[1]
    # Without a version all of these programs panic.
    values = {"gitVersion": number, "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(f"-X {p}.{name}={value}" for p in _VERSION_PACKAGES for name, value in values.items())
    words = (
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        f"-s -w {flags}",
        "-o",
        f"{out}/",
        "tool",
        "./coredns",
    )
    run(go, *words, cwd=module, env=environment, log=CACHE / "build-kubernetes.log")
    (out / "server").rename(out / "etcd")
    source = run(go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok", cwd=module, env=environment).strip()
    shutil.copytree(Path(source, "kustomize", "stage"), out / "kwok-stages")
    run("chmod", "-R", "u+w", out / "kwok-stages")  # Go's module cache is read-only


def _helm(go: str, module: Path, out: Path, environment: dict[str, str]) -> None:
    flags = f"-s -w -X helm.sh/helm/v3/internal/version.version={_pinned('helm', 'helm.sh/helm/v3')}"
    words = ("build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", f"{out}/", "tool")
    run(go, *words, cwd=module, env=environment, log=CACHE / "build-helm.log")
