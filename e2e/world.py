"""A test's own namespace: jobs in it, its folder on the machine that all nodes share, and what must hold at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.places import REPOSITORY
from e2e.installation import Installation
from e2e.kube import JOB, Kube, Object
from e2e.machine import OWN, Site
from tests.stored import flat_status

TRAINER = "docker.io/trainmaster/trainer:e2e"
PLAIN_TORCH = "docker.io/trainmaster/plain-torch:e2e"
PLAIN = "docker.io/library/python:e2e"
OUTPUT = "/checkpoints/output"
FINISHED = ("Succeeded", "Failed")
SMALL = {"requests": {"cpu": "50m", "memory": "64Mi"}}
"""Ranks that train without end keep both cores busy. The kernel divides the time of the cores in proportion to what the
pods request. The operator and the DNS request more: otherwise they would wait for the ranks, and the tests for them."""


class World:
    def __init__(self, kube: Kube, installation: Installation, namespace: str, site: Site = OWN) -> None:
        self.kube, self.installation, self.namespace = kube, installation, namespace
        self._site = site

    @property
    def folder(self) -> Path:
        """/checkpoints of its jobs. A test that needs it is skipped where nodes share none with this machine."""
        if self._site.shared is None:
            pytest.skip("E2E_SHARED names no folder that all nodes share with this machine")
        return self._site.shared / self.namespace

    def open(self) -> None:
        if self._site.shared is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            (self.folder / "output").mkdir(parents=True)
            for folder in (self.folder, self.folder / "output"):
                folder.chmod(0o777)  # pods aren't root
        labels = {"e2e": "trainmaster"}
        self.kube.create({"kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}})
        self.kube.wait(
            "ConfigMap", "kube-root-ca.crt", self.namespace, lambda found: found is not None, "the namespace is usable"
        )

    def close(self) -> None:
        """Deletes the jobs and sees their pods go, then the namespace: that also when something of a job stays, or the
        job would have its cores, and a next run would find the namespace."""
        try:
            for job in self.kube.list(JOB, self.namespace):
                self.delete(job["metadata"]["name"])
        finally:
            self.kube.delete("Namespace", self.namespace)
            if self._site.shared is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def limit_pods(self, most: int) -> None:
        """Have a quota of so many pods, and wait until the cluster goes by it: before, a new one refuses every pod,
        because what it counts is not known yet."""
        hard = {"pods": str(most)}
        meta = {"name": "pods", "namespace": self.namespace}
        self.kube.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}})

        def holds(quota: Object | None) -> bool:
            return bool(((quota or {}).get("status") or {}).get("hard") == hard)

        self.kube.wait("ResourceQuota", "pods", self.namespace, holds, f"it holds for {most} pods")

    # -- jobs

    def training(
        self,
        name: str = "job",
        replicas: int = 2,
        steps: int = 200,
        every: int = 10,
        mesh: dict[str, int] | None = None,
        training: Object | None = None,
        template: Object | None = None,
        env: dict[str, str] | None = None,
        **spec: Any,
    ) -> Object:
        """A job of our own trainer: a tiny GPT on the standard library of the image."""
        variables = {"TRAINMASTER_OUTPUT_DIR": OUTPUT, **(env or {})}
        container = {
            "name": "trainer",
            "resources": SMALL,
            "env": [{"name": key, "value": value} for key, value in variables.items()],
        }
        return {
            "apiVersion": "trainmaster.dev/v1alpha1",
            "kind": JOB,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "framework": "Trainmaster",
                "workers": {
                    "replicas": replicas,
                    "template": {
                        "spec": {"terminationGracePeriodSeconds": 30, "containers": [container], **(template or {})}
                    },
                },
                "training": {
                    "model": {"name": "gpt", "options": {"layers": 2, "heads": 2, "width": 32, "context": 32}},
                    "data": {"source": "text", "path": "@stdlib"},
                    "batch": {"global": 24},
                    "parallelism": mesh or {"dpShard": replicas},
                    "steps": steps,
                    "seed": 1,
                    **(training or {}),
                },
                "checkpoint": {"every": every, "keep": 3, "volume": {"hostPath": str(self.folder)}},
                **spec,
            },
        }

    def give_folder(self, job: Object, name: str) -> None:
        """Let a job keep its checkpoints and its output in a folder of its own, below that of the other jobs."""
        folder = self.folder / name / "output"
        folder.mkdir(parents=True)
        for path in (folder, folder.parent):
            path.chmod(0o777)
        job["spec"]["checkpoint"]["volume"]["hostPath"] += f"/{name}"

    def script(
        self,
        command: list[str],
        name: str = "job",
        replicas: int = 2,
        image: str = PLAIN,
        template: Object | None = None,
        container: Object | None = None,
        **spec: Any,
    ) -> Object:
        """A job of a user's own command in a user's own image."""
        return {
            "apiVersion": "trainmaster.dev/v1alpha1",
            "kind": JOB,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "framework": "PyTorch",
                "workers": {
                    "replicas": replicas,
                    "template": {
                        "spec": {
                            "terminationGracePeriodSeconds": 10,
                            "containers": [
                                {
                                    "name": "main",
                                    "image": image,
                                    "imagePullPolicy": "IfNotPresent",
                                    "command": command,
                                    "resources": SMALL,
                                    **(container or {}),
                                }
                            ],
                            **(template or {}),
                        }
                    },
                },
                **spec,
            },
        }

    def submit(self, job: Object) -> str:
        # What other tests did to a node is held against it for hours: it decides nothing, unless a test is of that.
        job["spec"].setdefault("recovery", {}).setdefault("nodes", {"avoid": False})
        self.kube.create(job)
        return str(job["metadata"]["name"])

    def job(self, name: str = "job") -> Object:
        return self.kube.get(JOB, name, self.namespace)

    def status(self, name: str = "job") -> Object:
        return flat_status(self.job(name).get("status"))

    def wait(self, until: Callable[[Object], Any], what: str, name: str = "job", limit_s: float = 120.0) -> Any:
        """Wait until `until(status)` is true."""

        def look(job: Object | None) -> Any:
            return None if job is None else until(flat_status(job.get("status")))

        return self.kube.wait(JOB, name, self.namespace, look, what, limit_s)

    def wait_phase(self, *phases: str, name: str = "job", limit_s: float = 120.0) -> Object:
        """The status once the job's phase is one of these. A job that ends otherwise fails the test at once."""

        def look(status: Object) -> Object | None:
            phase = status.get("phase")
            if phase in FINISHED and phase not in phases:
                raise AssertionError(f"{name} is {phase}: {status.get('lastFailure')}")
            return status if phase in phases else None

        found: Object = self.wait(look, f"phase {' or '.join(phases)}", name, limit_s)
        return found

    def wait_step(self, step: int, name: str = "job", limit_s: float = 180.0) -> Object:
        def look(status: Object) -> Object | None:
            if status.get("phase") == "Failed":
                raise AssertionError(f"{name} failed: {status.get('lastFailure')}")
            return status if (status.get("progress") or {}).get("step", 0) >= step else None

        found: Object = self.wait(look, f"step {step}", name, limit_s)
        return found

    def succeeded(self, name: str = "job", limit_s: float = 240.0) -> Object:
        return self.wait_phase("Succeeded", name=name, limit_s=limit_s)

    def delete(self, name: str = "job", limit_s: float = 60.0) -> None:
        """Deletes a job and waits until nothing of it is left."""
        self.kube.delete(JOB, name, self.namespace)
        self.kube.wait(JOB, name, self.namespace, lambda found: found is None, "deleted", limit_s)
        for kind in ("Pod", "Service", "ControllerRevision"):
            for obj in self.kube.list(kind, self.namespace, f"trainmaster.dev/job={name}"):
                self.gone(kind, obj["metadata"]["name"], limit_s)

    def gone(self, kind: str, name: str, limit_s: float = 60.0) -> None:
        self.kube.wait(kind, name, self.namespace, lambda found: found is None, "gone", limit_s)

    # -- pods

    def pods(self, name: str = "job") -> list[Object]:
        return self.kube.list("Pod", self.namespace, f"trainmaster.dev/job={name}")

    def uids(self, name: str = "job") -> dict[str, str]:
        """The uid of each pod of a job, by the name of the pod."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(name)}

    def pod(self, slot: int, incarnation: int = 0, name: str = "job") -> str:
        return f"{name}-worker-{slot}-{incarnation}"

    def node_of(self, pod: str) -> str:
        return str(self.kube.get("Pod", pod, self.namespace)["spec"]["nodeName"])

    def image(self, slot: int, incarnation: int = 0, name: str = "job") -> str:
        """The image of a pod's only container."""
        (container,) = self.kube.get("Pod", self.pod(slot, incarnation, name), self.namespace)["spec"]["containers"]
        return str(container["image"])

    def execute(self, pod: str, *command: str) -> str:
        return self.kube.kubectl("exec", "-n", self.namespace, pod, "--", *command)

    def events(self, name: str = "job") -> list[Object]:
        found = self.kube.list("Event", self.namespace)
        return [event for event in found if event["involvedObject"]["name"] == name]

    def logs(self, name: str = "job") -> str:
        """Of all pods of a job. Fails the test if there is none, or if one can't be read: whatever a log must not say
        would not be there."""
        pods = self.pods(name)
        assert pods, f"{name} has no pod whose log could be read"
        return "\n".join(self.kube.kubectl("logs", "-n", self.namespace, pod["metadata"]["name"]) for pod in pods)

    def trainmaster(self, *arguments: str) -> str:
        """Our own command on this namespace; returns what it printed."""
        done = self._command(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def remarks(self, *arguments: str) -> str:
        """Our own command on this namespace, which must not refuse; returns what it says beside its output."""
        done = self._command(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def refused(self, *arguments: str) -> str:
        """Our own command on this namespace, which must refuse; returns what it says."""
        done = self._command(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        return done.stderr

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join(str(REPOSITORY / folder) for folder in ("operator", "trainer"))
        return subprocess.run(
            [sys.executable, "-m", "trainmaster_operator.cli.main", *arguments, "-n", self.namespace],
            env={**os.environ, "KUBECONFIG": str(self.kube.kubeconfig), "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

    # -- results

    def losses(self, below: str = "") -> dict[int, set[str]]:
        """Every loss that was recorded for a step, as exact text: more than one means that a re-run differed. `below`:
        the folder of the job's checkpoints, where it has one of its own."""
        seen: dict[int, set[str]] = {}
        for line in self._output("metrics.jsonl", below).read_text().splitlines():
            record = json.loads(line)
            seen.setdefault(record["step"], set()).add(float(record["loss"]).hex())
        return seen

    def final(self) -> Object:
        """Step, loss and the digest of parameters and optimizer state at the end."""
        final: Object = json.loads(self._output("final.json").read_text())
        return final

    def _output(self, name: str, below: str = "") -> Path:
        return self.folder / below / "output" / name

    # -- ranks inside containers

    def rank_process(self, pod: str) -> int:
        """The pid, as its container sees it, of the newest rank in a pod."""
        return int(self.execute(pod, "python3", "-c", _FIND_RANK).strip())

    def signal(self, pod: str, pid: int, number: int) -> None:
        self.execute(pod, "python3", "-c", f"import os; os.kill({pid}, {number})")

    def kill_container(self, pod: str, namespace: str = "") -> None:
        """SIGKILL to every process of a pod's containers at once, from outside."""
        found = self.kube.get("Pod", pod, namespace or self.namespace)
        assert self._site.machine is not None
        self._site.machine.kill_pod(found["spec"]["nodeName"], found["metadata"]["uid"])


_FIND_RANK = r"""
import os, re
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    if pid == "1":
        continue
    try:
        maps = open(f"/proc/{pid}/maps").read()
    except OSError:
        continue
    rounds = re.findall(r"memfd:trainmaster-progress-(\d+)-", maps)
    if rounds:
        found.append((max(map(int, rounds)), int(pid)))
print(max(found)[1])
"""
