"""Creation: from a job's arrival at the API server until all its pods are there, and until all of them run.

    python -m benchmarks.create [--pods 1 10 100 1000] [--repetitions 5] [--no-write]

Beside the installed operator, a bare client that only posts the same pods: bodies made before the clock starts, over
connections that are open already, as many at a time as the operator has. The two take turns. Needs the cluster of
`make cluster`, whose own components share the machine with both; the nodes of the pods only pretend.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from typing import NamedTuple

from benchmarks import counts, kwok
from benchmarks.record import Case, name_of, write
from benchmarks.recovery import table
from e2e.cluster import places
from e2e.installation import VALUES
from e2e.kube import Kube, Object
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.port import CONFIG_MAP, POD
from trainmaster_operator.manifests.job_pod import fill_pod, render_pod
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.runtime.parallel_api_calls import PARALLEL_CALLS

SPACE = "bench-create"
PODS = [1, 10, 100, 1000]
GOAL = 1.25  # of the bare client's time, at the largest size
STRANGER = "benchmark.example/job"  # instead of our own label: the operator must not look at the bare client's pods
IMAGE = f"{VALUES['image']['repository']}:{VALUES['image']['tag']}"
DEFAULTS = PodDefaults(
    "https://trainmaster-operator.trainmaster-system.svc:8443",
    trainer_image=f"{VALUES['trainerImage']['repository']}:{VALUES['trainerImage']['tag']}",
    agent_image=IMAGE,
    in_cluster=True,
)


class Times(NamedTuple):
    created: float
    running: float


def ours(kube: Kube, pods: int, number: int) -> Times:
    job = kwok.job(f"job-{number}", SPACE, pods)
    watch = kwok.Watch(kube, SPACE, pods)
    began = time.monotonic()
    kube.create(job)
    return _timed(watch, began)


def bare(kube: Kube, pods: int, number: int) -> Times:
    owner = kube.create(
        {"kind": CONFIG_MAP, "apiVersion": "v1", "metadata": {"name": f"bare-{number}", "namespace": SPACE}}
    )
    bodies = [_body(owner, f"job-{number}", pods, slot) for slot in range(pods)]
    watch = kwok.Watch(kube, SPACE, pods)
    began = asyncio.run(_post(bodies))
    times = _timed(watch, began)
    kube.delete(CONFIG_MAP, owner["metadata"]["name"], SPACE)
    return times


def _timed(watch: kwok.Watch, began: float) -> Times:
    try:
        return Times(watch.seen() - began, watch.run() - began)
    finally:
        watch.close()


def _body(owner: Object, name: str, pods: int, slot: int) -> Object:
    """What the operator would post, but owned by somebody who is there, and labelled as somebody else's."""
    manifest = kwok.job(name, SPACE, pods)
    manifest["metadata"]["uid"] = owner["metadata"]["uid"]
    body = fill_pod(render_pod(DistributedTrainingJob.model_validate(manifest), "worker", DEFAULTS), slot, 0, DEFAULTS)
    body["metadata"]["labels"] = {
        STRANGER if label == "trainmaster.dev/job" else label: value
        for label, value in body["metadata"]["labels"].items()
    }
    body["metadata"]["ownerReferences"][0].update(apiVersion="v1", kind=CONFIG_MAP, name=owner["metadata"]["name"])
    return body


async def _post(bodies: list[Object]) -> float:
    """Posts them; returns when it began."""
    cluster = await KubernetesCluster.connect(str(places.KUBECONFIG))
    left = iter(bodies)

    async def work() -> None:
        for body in left:
            await cluster.create(POD, body)

    try:
        await asyncio.gather(*(cluster.list(CONFIG_MAP, SPACE) for _ in range(PARALLEL_CALLS)))
        began = time.monotonic()
        await asyncio.gather(*(work() for _ in range(PARALLEL_CALLS)))
        return began
    finally:
        await cluster.close()


SYSTEMS = {"trainmaster": ours, "a bare client": bare}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", default=PODS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, pods=1, repetitions=1)
    kube = Kube(places.KUBECONFIG, places.BIN / "kubectl")
    kwok.install(kube)
    cases: list[Case] = []
    missed: list[str] = []
    with kwok.fake_nodes(), kwok.space(kube, SPACE):
        for run in SYSTEMS.values():  # first times of all kinds, which nobody times
            run(kube, 10, 0)
            kwok.empty(kube, SPACE)
        for pods in given.pods:
            times: dict[str, list[Times]] = {system: [] for system in SYSTEMS}
            for repetition in range(given.repetitions):
                for system in sorted(SYSTEMS, reverse=bool(repetition % 2)):
                    times[system].append(SYSTEMS[system](kube, pods, repetition))
                    kwok.empty(kube, SPACE)
            for what in Times._fields:
                found = [
                    Case(f"{pods} pods {what}", name, "s", [getattr(t, what) for t in times[name]]) for name in SYSTEMS
                ]
                ratios = found[0].over(found[1])
                cases += [*found, Case(f"{pods} pods {what}, ratio", "trainmaster/bare", "", ratios)]
                ratio = statistics.median(ratios)
                told = ", ".join(f"{case.system} {' '.join(f'{s:.2f}' for s in case.samples)} s" for case in found)
                print(f"{pods:5} pods {what:8} {told}: ratio {ratio:.2f}", flush=True)
                if pods == max(given.pods) and ratio > GOAL:
                    missed.append(f"{pods} pods {what}: {ratio:.2f} > {GOAL}")
    print(table(cases))
    if not given.no_write:
        print(f"written to {write(name_of('create', given.pods, PODS), cases)}")
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
