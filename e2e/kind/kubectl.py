"""kubectl on the kind cluster."""

from __future__ import annotations

import shutil

from e2e.cluster.places import BIN
from e2e.cluster.shell import run, works
from e2e.kind.places import KUBECONFIG


def program() -> str:
    """Ours where it was built, else the machine's."""
    return str(BIN / "kubectl") if (BIN / "kubectl").exists() else shutil.which("kubectl") or "kubectl"


def kubectl(*words: str, stdin: str = "") -> str:
    return run(program(), "--kubeconfig", KUBECONFIG, *words, stdin=stdin)


def ready() -> bool:
    return works(program(), "--kubeconfig", KUBECONFIG, "--request-timeout=2s", "get", "--raw", "/readyz")
