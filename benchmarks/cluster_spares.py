"""Our own loop on a real cluster: a deleted pod and a lost node, with a warm spare and without; and other sizes.

    python -m benchmarks.cluster_spares [--repetitions 3] [--no-write]

Needs the cluster of `make cluster`. What is measured is what training shows: rank 0 writes a line for each completed
step. A sample is the longest stretch without a step after the disturbance, or the time from the disturbance to that
stretch's end, on the machine's one clock: ranks of a pod that is told to go train on until they have agreed where to
stop. The operator's own account is written beside it. A lost node may have the operator's leader on it: that is a case
of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import counts
from benchmarks.clocks import interrupted, nth_clock
from benchmarks.cluster_recovery import Undo, opened, wait_recovered
from benchmarks.record import Case, write
from benchmarks.recovery import table
from benchmarks.stepwatch import Interruption, Steps
from e2e.cluster import places
from e2e.installation import NAMESPACE, Installation
from e2e.kube import JOB, Kube, Object
from e2e.machine import Own
from e2e.world import World

Sample = tuple[Interruption, dict[str, float]]

SIZES = ((4, 3), (3, 4))  # pods, before a change and after it; one job goes through both changes
SETTLE_S = 5.0  # for agents to find the new leader
BEFORE_S, AFTER_S = 1.0, 2.0  # stretches of ordinary steps, which the interruption is told from


def apart(job: str) -> Object:
    """One pod per node, so that a lost node takes one."""
    selector = {"matchLabels": {"trainmaster.dev/job": job}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def pod_deleted(world: World) -> Callable[[], Undo]:
    pod = world.pod(1)

    def strike() -> Undo:
        world.kube.delete("Pod", pod, world.namespace)
        return lambda: None

    return strike


def node_lost(world: World, *, with_leader: bool) -> Callable[[], Undo]:
    """Of a node that has a rank, and the leader or not."""
    machine = Own()
    nodes = [node for node in (world.node_of(world.pod(slot)) for slot in (0, 1)) if node != machine.steady]
    node = _led(world.installation, nodes, with_leader)

    def strike() -> Undo:
        machine.lose(node)
        return lambda: machine.heal(node)

    return strike


def _led(installation: Installation, nodes: list[str], wanted: bool) -> str:
    """One of the nodes, after a leader was found that is on it, or isn't."""
    for _ in range(6):
        leader = installation.leader()
        place = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in installation.replicas()}[leader]
        fitting = [node for node in nodes if (node == place) == wanted]
        if fitting:
            time.sleep(SETTLE_S)
            return fitting[-1]
        installation.kube.delete("Pod", leader, NAMESPACE)  # the other one leads at once
        installation.leader(other_than=leader)
        installation.wait_ready()
    raise SystemExit(f"no replica of the operator {'leads on' if wanted else 'leads beside'} any of {nodes}")


@dataclass(frozen=True)
class Plan:
    name: str
    replicas: int
    spares: int
    template: dict[str, Any]
    disturb: Callable[[World], Callable[[], Undo]]


APART = {"affinity": apart("job")}
ELSEWHERE, TOO = partial(node_lost, with_leader=False), partial(node_lost, with_leader=True)
PLANS = (
    Plan("4 pods, a pod deleted, a warm spare", 4, 1, {}, pod_deleted),
    Plan("4 pods, a pod deleted, no spare", 4, 0, {}, pod_deleted),
    Plan("2 pods, a node lost, a warm spare", 2, 1, APART, ELSEWHERE),
    Plan("2 pods, a node lost, no spare", 2, 0, APART, ELSEWHERE),  # the third node has room
    Plan("2 pods, a node lost and the leader with it, a warm spare", 2, 1, APART, TOO),
)


def disturbed(world: World, plan: Plan) -> Sample:
    # A node that was lost in the repetition before is suspected, and with a spare there is no other one here.
    recovery = {"nodes": {"avoid": plan.spares == 0}}
    job = world.training(replicas=plan.replicas, steps=1_000_000, every=100, template=plan.template, recovery=recovery)
    job["spec"]["workers"]["spares"] = plan.spares
    world.submit(job)
    world.wait_step(300, limit_s=240)
    world.wait(lambda status: status["workers"].get("spares", 0) == plan.spares, "the spares are ready", limit_s=120)
    strike = plan.disturb(world)
    with Steps(world.folder / "output" / "metrics.jsonl") as steps:
        time.sleep(BEFORE_S)
        before = time.monotonic()
        undo = strike()
        try:
            clock = wait_recovered(world)
            time.sleep(AFTER_S)
        finally:
            undo()
        seen = steps.interruption(before)
    return seen, clock


def resized(world: World) -> dict[str, Sample]:
    """A job of 4 pods that has 3 for a while."""
    job = world.training(replicas=4, steps=1_000_000, every=100, mesh={"dpReplicate": 1})
    job["spec"]["workers"]["min"] = 2
    job["spec"]["recovery"] = {"elastic": {"cooldownSeconds": 0}}
    world.submit(job)
    world.wait_step(300, limit_s=240)
    found = {}
    with Steps(world.folder / "output" / "metrics.jsonl") as steps:
        for number, (was, size) in enumerate(SIZES, 1):
            time.sleep(BEFORE_S)
            before = time.monotonic()
            world.kube.patch(JOB, "job", world.namespace, {"spec": {"workers": {"replicas": size}}})
            clock = world.wait(partial(nth_clock, number), "resized")
            time.sleep(AFTER_S)
            found[size_name(was, size)] = (steps.interruption(before), clock)
    return found


def size_name(was: int, size: int) -> str:
    return f"{was} pods, then {size}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", default="", help="cases with these words in their names, of which nothing is written")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, repetitions=1)
    plans = [plan for plan in PLANS if given.only in plan.name]
    names = [size_name(*sizes) for sizes in SIZES]
    resizes = any(given.only in name for name in names)
    if not plans and not resizes:
        parser.error(f"--only {given.only}: the cases are {'; '.join([*(plan.name for plan in PLANS), *names])}")
    kube = Kube(places.KUBECONFIG, places.BIN / "kubectl")
    installation = Installation(kube, places.BIN / "helm")
    installation.install()
    cases: list[Case] = []

    def add(name: str, samples: list[Sample]) -> None:
        found = interrupted(name, samples)
        cases.extend(found)
        print(f"{name:58} {' '.join(f'{s:.2f}' for s in found[0].samples)}", flush=True)
        if not given.no_write and not given.only:  # the other cases would be lost
            write("cluster-spares", cases)

    for at, plan in enumerate(plans):
        samples = []
        for number in range(given.repetitions):
            with opened(kube, installation, f"bench-spares-{at}-{number}") as world:
                samples.append(disturbed(world, plan))
            installation.wait_ready()
        add(plan.name, samples)
    sizes: dict[str, list[Sample]] = {}
    for number in range(given.repetitions if resizes else 0):
        with opened(kube, installation, f"bench-sizes-{number}") as world:
            for name, sample in resized(world).items():
                sizes.setdefault(name, []).append(sample)
    for name, of_size in sizes.items():
        add(name, of_size)
    print(table(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
