"""Our own loop on a real cluster: a deleted pod and a lost node, with a warm spare and without; and other sizes.

    python -m benchmarks.cluster_spares [--repetitions 3] [--no-write]

Needs the cluster of `make cluster`. What is measured is what training shows: rank 0 writes a line for each completed
step, and the longest stretch without one after the disturbance is the interruption. A sample is the time from the
disturbance to the end of that stretch, on the machine's one clock; the operator's own account is written beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmarks.clocks import clock_cases, nth_clock
from benchmarks.cluster_recovery import wait_recovered
from benchmarks.record import Case, write
from benchmarks.recovery import table
from benchmarks.stepwatch import Steps
from e2e.cluster import places
from e2e.installation import Installation
from e2e.kube import JOB, Kube, Object
from e2e.machine import Own
from e2e.world import World


def apart(job: str) -> Object:
    """One pod per node, so that a lost node takes one."""
    selector = {"matchLabels": {"trainmaster.dev/job": job}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def pod_deleted(world: World) -> Callable[[], None]:
    pod = world.pod(1)
    world.kube.delete("Pod", pod, world.namespace)
    return lambda: None


def node_lost(world: World) -> Callable[[], None]:
    nodes = [world.node_of(world.pod(slot)) for slot in (0, 1)]
    machine = Own()
    node = next(node for node in reversed(nodes) if node != machine.steady)
    machine.lose(node)
    return lambda: machine.heal(node)


def disturbed(
    world: World, replicas: int, spares: int, template: Object, disturb: Callable[[World], Callable[[], None]]
) -> tuple[float, dict[str, float]]:
    """Seconds from the disturbance to training again, and the phase clock of the operator's record."""
    job = world.training(replicas=replicas, steps=1_000_000, every=100, template=template, recovery={"nodes": {}})
    job["spec"]["workers"]["spares"] = spares
    world.submit(job)
    world.wait_step(300, limit_s=240)
    world.wait(lambda status: status["workers"].get("spares", 0) == spares, "the spares are ready", limit_s=120)
    with Steps(world.folder / "output" / "metrics.jsonl") as steps:
        time.sleep(1.0)  # a stretch of ordinary steps, which the interruption is told from
        before = time.monotonic()
        undo = disturb(world)
        try:
            clock = wait_recovered(world)
            time.sleep(2.0)
        finally:
            undo()
        seconds = steps.interruption(before)
    return seconds, clock


def resized(world: World) -> dict[str, tuple[float, dict[str, float]]]:
    """A job of 4 pods that has 3 for a while. Of each change the seconds, and the phase clock."""
    job = world.training(replicas=4, steps=1_000_000, every=100, mesh={"dp_replicate": 1})
    job["spec"]["workers"]["min"] = 2
    job["spec"]["recovery"] = {"elastic": {"cooldownSeconds": 0}}
    world.submit(job)
    world.wait_step(300, limit_s=240)
    found = {}
    with Steps(world.folder / "output" / "metrics.jsonl") as steps:
        for number, (was, size) in enumerate(((4, 3), (3, 4)), 1):
            time.sleep(1.0)
            before = time.monotonic()
            world.kube.patch(JOB, "job", world.namespace, {"spec": {"workers": {"replicas": size}}})
            clock = world.wait(partial(nth_clock, number), "resized")
            time.sleep(2.0)
            found[f"{was} pods, then {size}"] = (steps.interruption(before), clock)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    kube = Kube(places.KUBECONFIG, places.BIN / "kubectl")
    installation = Installation(kube, places.BIN / "helm")
    installation.install()
    cases: list[Case] = []
    plans = [
        ("4 pods, a pod deleted, a warm spare", 4, 1, {}, pod_deleted),
        ("4 pods, a pod deleted, no spare", 4, 0, {}, pod_deleted),
        ("2 pods, a node lost, a warm spare", 2, 1, {"affinity": apart("job")}, node_lost),
        ("2 pods, a node lost, no spare", 2, 0, {"affinity": apart("job")}, node_lost),  # the third node has room
    ]
    for at, (name, replicas, spares, template, disturb) in enumerate(plans):
        case = Case(name, "trainmaster", "s")
        clocks: list[dict[str, float]] = []
        for number in range(given.repetitions):
            world = World(kube, installation, f"bench-spares-{at}-{number}")
            world.open()
            seconds, clock = disturbed(world, replicas, spares, template, disturb)
            case.samples.append(seconds)
            clocks.append(clock)
            world.close()
        cases += [case, *clock_cases(case, clocks)]
        print(f"{name:38} {' '.join(f'{s:.2f}' for s in case.samples)}", flush=True)
        if not given.no_write:
            write("cluster-spares", cases)
    sizes: dict[str, list[tuple[float, dict[str, float]]]] = {}
    for number in range(given.repetitions):
        world = World(kube, installation, f"bench-sizes-{number}")
        world.open()
        for name, sample in resized(world).items():
            sizes.setdefault(name, []).append(sample)
        world.close()
    for name, samples in sizes.items():
        case = Case(name, "trainmaster", "s", [seconds for seconds, _ in samples])
        cases += [case, *clock_cases(case, [clock for _, clock in samples])]
    if not given.no_write:
        write("cluster-spares", cases)
    print(table(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
