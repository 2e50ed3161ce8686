"""Pods by the thousand on nodes that only pretend: jobs of them, a watch that times them, what they cost the operator.

    python -m benchmarks.kwok KUBECONFIG NAMESPACE COUNT

is that watch, in a process of its own: it must not take the time of whoever creates the pods. It writes `watching`, and
then, as seconds of the monotonic clock, when it had seen so many pods, and when it had seen so many of them run.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import yaml

from e2e.cluster import places
from e2e.installation import CHART, NAMESPACE, Installation
from e2e.kube import JOB, Kube, Object
from e2e.machine import cluster
from e2e.world import PLAIN
from trainmaster.host import processes
from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.port import ADDED, MODIFIED, POD

NODES = 100
LIMIT_S = 600.0
FOREVER_S = 10**6  # nobody speaks for pods that pretend, and that must count as no failure


class Usage(NamedTuple):
    """Of one replica of the operator."""

    cpu_s: float  # so far
    memory_mib: float


class Watch:
    """Times the pods of a namespace from before the first of them is there."""

    def __init__(self, kube: Kube, namespace: str, count: int) -> None:
        command = [sys.executable, "-m", "benchmarks.kwok", str(kube.kubeconfig), namespace, str(count)]
        tied = partial(processes.die_with_parent, os.getpid())
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=places.REPOSITORY, preexec_fn=tied
        )
        self._line("watching")

    def seen(self) -> float:
        return float(self._line("seen"))

    def run(self) -> float:
        return float(self._line("run"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self, expected: str) -> str:
        assert self._process.stdout is not None
        word, _, rest = self._process.stdout.readline().strip().partition(" ")
        if word != expected:
            raise SystemExit(f"the pods were not {expected} within {LIMIT_S:g} s")
        return rest


@contextmanager
def fake_nodes(count: int = NODES) -> Iterator[None]:
    cluster("kwok", "up", str(count))
    try:
        yield
    finally:
        cluster("kwok", "down")


@contextmanager
def space(kube: Kube, name: str) -> Iterator[str]:
    """A namespace in which pods can be created."""
    kube.create({"kind": "Namespace", "metadata": {"name": name}})
    kube.wait("ConfigMap", "kube-root-ca.crt", name, lambda found: found is not None, "the namespace is usable")
    kube.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=60s")
    try:
        yield name
    finally:
        empty(kube, name)
        kube.delete("Namespace", name)
        kube.wait("Namespace", name, "", lambda found: found is None, "gone")


def empty(kube: Kube, namespace: str) -> None:
    """Ends all jobs and pods of a namespace, and sees them gone."""
    for job in kube.list(JOB, namespace):
        kube.delete(JOB, job["metadata"]["name"], namespace)
    deadline = time.monotonic() + LIMIT_S
    while kube.list(JOB, namespace) or kube.list("Pod", namespace):
        if time.monotonic() > deadline:
            raise SystemExit(f"{namespace}: its pods don't go")
        kube.kubectl("delete", "--raw", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        time.sleep(0.5)


def install(kube: Kube) -> Installation:
    """The chart with its own resources: what a person gets who sets nothing."""
    installation = Installation(kube, places.BIN / "helm")
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    installation.install(resources=defaults["resources"])
    return installation


def job(name: str, namespace: str, pods: int, selector: dict[str, str] | None = None) -> Object:
    container = {"name": "main", "image": PLAIN, "command": ["python", "train.py"]}
    template = {
        "nodeSelector": {"type": "kwok", **(selector or {})},
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
        "containers": [{**container, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}],
    }
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": JOB,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "framework": "PyTorch",
            "workers": {"replicas": pods, "template": {"spec": template}},
            "recovery": {"agentLostSeconds": FOREVER_S},
            "scheduling": {"releaseSeconds": 0},
        },
    }


def usage(kube: Kube, pod: str) -> Usage:
    """Through the API server, which reaches every pod."""
    text = kube.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics")
    cpu, memory = (
        float(re.findall(rf"^process_{name} (\S+)", text, re.M)[0])
        for name in ("cpu_seconds_total", "resident_memory_bytes")
    )
    return Usage(cpu, memory / 2**20)


async def watch(kubeconfig: str, namespace: str, count: int) -> None:
    """The process."""
    cluster = await KubernetesCluster.connect(kubeconfig)
    try:
        async with asyncio.timeout(LIMIT_S):
            await _watch(cluster, namespace, count)
    finally:
        await cluster.close()


async def _watch(cluster: KubernetesCluster, namespace: str, count: int) -> None:
    version = (await cluster.list(POD, namespace)).resource_version
    print("watching", flush=True)
    seen: set[str] = set()
    running: set[str] = set()
    while True:
        async for event in cluster.watch(POD, version, namespace):
            version = event.object["metadata"]["resourceVersion"]
            if event.type not in (ADDED, MODIFIED):
                continue
            name = event.object["metadata"]["name"]
            if name not in seen:
                seen.add(name)
                if len(seen) == count:
                    print("seen", time.monotonic(), flush=True)
            if event.object["status"].get("phase") == "Running" and name not in running:
                running.add(name)
                if len(running) == count:
                    print("run", time.monotonic(), flush=True)
                    return
        print(f"the watch has ended after {len(seen)} pods, {len(running)} of them running", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], sys.argv[2], int(sys.argv[3])))
