"""The chart as a person installs it, and the operator's replicas."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.cluster import images
from e2e.cluster.places import REPOSITORY
from e2e.kube import Kube, Object

NAMESPACE = "trainmaster-system"
RELEASE = "trainmaster"
OPERATOR = "trainmaster-operator"
CHART = REPOSITORY / "charts" / "trainmaster"

VALUES: dict[str, Any] = {
    **images.VALUES,
    # Two cores carry the control plane, three nodes and the jobs under test, whose pods request less.
    "resources": {"requests": {"cpu": "500m", "memory": "96Mi"}, "limits": None},
    # Dozens of replicas start in these tests, and each is waited for.
    "startupProbe": {"periodSeconds": 1, "failureThreshold": 120},
    "readinessProbe": {"periodSeconds": 1, "failureThreshold": 10},
}


class Installation:
    def __init__(self, kube: Kube, helm: Path) -> None:
        self.kube, self._helm = kube, helm

    def install(self, chart: Path = CHART, **values: Any) -> None:
        """Install or upgrade, and wait until all replicas are Ready."""
        self.helm(
            "upgrade",
            "--install",
            RELEASE,
            str(chart),
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--values",
            "-",
            stdin=json.dumps({**VALUES, **values}),
        )
        self.wait_ready()

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")

    def helm(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(self._helm), "--kubeconfig", str(self.kube.kubeconfig), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"helm {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def wait_ready(self, limit_s: float = 120.0) -> None:
        """Every replica of the present template is Ready, and one leads."""

        def ready(deployment: Object | None) -> bool:
            if deployment is None:
                return False
            status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
            seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
            counts = [status.get(k, 0) for k in ("replicas", "updatedReplicas", "readyReplicas")]
            return seen and counts == [wanted] * 3

        self.kube.wait("Deployment", OPERATOR, NAMESPACE, ready, "all replicas are Ready", limit_s)
        if self.kube.get("Deployment", OPERATOR, NAMESPACE)["spec"]["replicas"]:
            self.leader(limit_s)

    def leader(self, limit_s: float = 60.0, other_than: str = "") -> str:
        """The name of the pod that leads, once one does."""

        def held(lease: Object | None) -> str:
            holder = str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
            # A replica that was killed still stands in the Lease for a while.
            return next((name for name in self._alive() if holder.startswith(name) and name != other_than), "")

        holder: str = self.kube.wait("Lease", OPERATOR, NAMESPACE, held, "a replica leads", limit_s)
        return holder

    def _alive(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.replicas() if not pod["metadata"].get("deletionTimestamp")]

    def replicas(self) -> list[Object]:
        return self.kube.list("Pod", NAMESPACE, "app.kubernetes.io/component=operator")

    def wait_old_ended(self, limit_s: float = 60.0) -> None:
        """Wait until no replica is being deleted: kubectl lists such a pod, and may then find it no more."""
        for pod in self.replicas():
            if pod["metadata"].get("deletionTimestamp"):
                self.kube.wait("Pod", pod["metadata"]["name"], NAMESPACE, lambda found: found is None, "ended", limit_s)

    def node_of(self, replica: str) -> str:
        return str(self.kube.get("Pod", replica, NAMESPACE)["spec"]["nodeName"])

    def scale(self, replicas: int) -> None:
        """With 0 it returns when the last one has ended: a Deployment doesn't count those that are being deleted."""
        before = self.replicas()
        self.kube.scale(OPERATOR, NAMESPACE, replicas)
        self.wait_ready()
        if not replicas:
            for pod in before:
                self.kube.wait("Pod", pod["metadata"]["name"], NAMESPACE, lambda found: found is None, "ended", 60)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Run no replica in the block. After it there are as many as before, whatever happens."""
        # Not the pods that there are: one of an earlier ReplicaSet may still be ending.
        wanted = self.kube.get("Deployment", OPERATOR, NAMESPACE)["spec"]["replicas"]
        try:
            self.scale(0)
            yield
        finally:
            self.scale(wanted)
