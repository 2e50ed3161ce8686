"""Our own loop on a real cluster: a deleted pod and a lost node, with a warm spare and without.

    python -m benchmarks.cluster_spares [--repetitions 3] [--no-write]

Needs the cluster of `make cluster`. What is measured is what training shows: rank 0 writes a line for each completed
step, and the longest stretch without one after the disturbance is the interruption. A sample is the time from the
disturbance to the end of that stretch, on the machine's one clock; the operator's own account is written beside it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.cluster_recovery import clock_cases, wait_recovered
from benchmarks.record import Case, write
from benchmarks.recovery import table
from e2e.cluster import places
from e2e.installation import Installation
from e2e.kube import Kube, Object
from e2e.machine import Own
from e2e.world import World

LOOK_EVERY_S = 0.005


class Steps:
    """When the file of completed steps grew, as seen from outside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Steps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        size = -1
        while not self._over.wait(LOOK_EVERY_S):
            now = self._path.stat().st_size if self._path.exists() else 0
            if now != size:
                size = now
                self.seen.append(time.monotonic())

    def interruption(self, since: float) -> float:
        """Seconds from `since` to the end of the longest stretch without a step after it."""
        times = [since, *(at for at in self.seen if at > since)]
        return max(itertools.pairwise(times), key=lambda pair: pair[1] - pair[0])[1] - since


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
    print(table(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
