"""Recovery of a killed rank under Trainmaster and then under JobSet, on the same cluster.

    python -m benchmarks.jobset --manifests jobset-manifests.yaml [--ranks 4] [--kills 5] [--no-write]

Needs the cluster of `make cluster`, and a release's manifests.yaml of JobSet, whose images the nodes can pull; neither
is part of this repository. The script, its image and its stamps are those of cluster_recovery.py: an indexed Job of one
rank in each pod, and JobSet's own failure policy, which starts all pods again. A sample is the time from the death of a
rank's process to the first step that all ranks have completed after it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster_recovery import NOT_THE_FIRST_NODE, killed_ranks, opened
from benchmarks.record import Case, write
from benchmarks.recovery import SCRIPT, recovery_times, table
from e2e.cluster import places
from e2e.installation import Installation
from e2e.kube import Kube, Object
from e2e.world import PLAIN_TORCH, SMALL, World

NAME = "bench"
SPACE = "jobset-system"
RESTARTS = "jobset.sigs.k8s.io/restart-attempt"  # a label of each pod
SETTLE_S = (25.0, 4.0)  # as cluster_recovery.py has it: before the first kill, and before later ones


def manifest(namespace: str, folder: Path, ranks: int, kills: int) -> Object:
    """Return the JobSet: `ranks` pods that find each other by their names, and are all started again together."""
    script = ["python", "/data/script.py", "--folder", "/data", "--kills", str(kills), "--settle", *map(str, SETTLE_S)]
    label = {"fieldRef": {"fieldPath": f"metadata.labels['{RESTARTS}']"}}
    container: dict[str, Any] = {
        "name": "main",
        "image": PLAIN_TORCH,
        "imagePullPolicy": "IfNotPresent",
        # The shell stays: a process with pid 1 could not kill itself.
        "command": ["sh", "-c", f"RANK=$JOB_COMPLETION_INDEX LOCAL_RANK=0 {' '.join(script)}; exit $?"],
        "env": [
            {"name": "WORLD_SIZE", "value": str(ranks)},
            {"name": "MASTER_ADDR", "value": f"{NAME}-worker-0-0.{NAME}"},
            {"name": "MASTER_PORT", "value": "29500"},
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "TORCHELASTIC_RESTART_COUNT", "valueFrom": label},
        ],
        "resources": SMALL,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        "affinity": NOT_THE_FIRST_NODE,
        "containers": [container],
        "volumes": [{"name": "data", "hostPath": {"path": str(folder)}}],
    }
    job = {"parallelism": ranks, "completions": ranks, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "failurePolicy": {"maxRestarts": kills},
            "network": {"enableDNSHostnames": True, "subdomain": NAME},
            "replicatedJobs": [
                {"name": "worker", "replicas": 1, "template": {"spec": {**job, "template": {"spec": pod}}}}
            ],
        },
    }


def under_jobset(world: World, ranks: int, kills: int) -> list[float]:
    """Seconds from each death to the next step of all ranks."""
    shutil.copy(SCRIPT, world.folder / "script.py")
    world.kube.apply(manifest(world.namespace, world.folder, ranks, kills))
    limit = f"--timeout={300 + 60 * kills}s"
    world.kube.kubectl("wait", "--for=condition=Completed", f"jobset/{NAME}", "-n", world.namespace, limit)
    times = recovery_times(world.folder, ranks, kills)
    world.kube.kubectl("delete", f"jobset/{NAME}", "-n", world.namespace, "--wait")
    return times


def image_of(kube: Kube) -> str:
    """Return the image of JobSet's controller, which names its release."""
    found = json.loads(kube.kubectl("get", "deployments", "-n", SPACE, "-o", "json"))["items"]
    return str(found[0]["spec"]["template"]["spec"]["containers"][0]["image"])


def read(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.jobset", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--manifests", type=Path, required=True, help="manifests.yaml of a release of JobSet")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=5, help="of a rank's process, in one run")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args(arguments)
    if not given.manifests.is_file():
        parser.error(f"--manifests {given.manifests}: there is no such file; a release of JobSet has it")
    if given.ranks < 2 or given.kills < 1:
        parser.error(f"--ranks {given.ranks} --kills {given.kills}: at least 2 ranks and 1 kill are needed")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = read(arguments)
    kube = Kube(places.KUBECONFIG, places.BIN / "kubectl")
    # By the server: the definition is too large for the annotation that a client would leave on it.
    kube.kubectl("apply", "--server-side", "-f", str(given.manifests))
    kube.kubectl("wait", "--for=condition=Available", "deployment", "--all", "-n", SPACE, "--timeout=300s")
    installation = Installation(kube, places.BIN / "helm")
    installation.install()
    cases = []
    for system in ("trainmaster", "JobSet"):
        with opened(kube, installation, f"bench-{system.lower()}") as world:
            if system == "JobSet":
                samples = under_jobset(world, given.ranks, given.kills)
            else:
                samples, _ = killed_ranks(world, given.ranks, given.kills)
        cases.append(Case(f"{given.ranks} pods, a rank killed", system, "s", samples))
    print(table(cases))
    if not given.no_write:
        print(f"written to {write('jobset', cases, image=image_of(kube))}")
    return 0 if all(len(case.samples) == given.kills for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
