"""Recovery on a real cluster: a killed rank, a deleted pod, a lost node, and a leader that goes.

    python -m benchmarks.cluster_recovery [--ranks 4] [--kills 8] [--repetitions 3] [--no-write]

Needs the cluster of `make cluster`. All nodes share one machine and so one monotonic clock: the ranks of
`recovery_script.py` write down when they die and when a step is complete, so nothing is estimated.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import counts, recovery_stamps
from benchmarks.clocks import clock_cases, closed_clocks
from benchmarks.record import Case, write
from benchmarks.recovery import SCRIPT, recovery_times, table
from e2e.cluster import places
from e2e.installation import NAMESPACE, Installation
from e2e.kube import Kube, Object
from e2e.machine import Own
from e2e.world import PLAIN_TORCH, World

Undo = Callable[[], None]
Disturb = Callable[[World, str], Undo]
"""Disturbs a pod of a world, and returns what takes it back."""

NOT_THE_FIRST_NODE = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node1"]}]}
            ]
        }
    }
}
"""The machine reaches the cluster's services through that one."""


@contextmanager
def opened(kube: Kube, installation: Installation, namespace: str) -> Iterator[World]:
    """A namespace of its own, which is gone after the block with all that is in it, whatever ends the block."""
    world = World(kube, installation, namespace)
    world.open()
    try:
        yield world
    finally:
        world.close()


def scripted(
    world: World,
    ranks: int,
    kills: int,
    settle: tuple[float, float],
    after: int = 20,
    apart: Object = NOT_THE_FIRST_NODE,
) -> Object:
    """The recovery benchmark's job: `ranks` pods of one rank. `apart`: their affinity; by default, on nodes that can be
    lost."""
    shutil.copy(SCRIPT, world.folder / "script.py")
    words = ["python", "/data/script.py", "--folder", "/data", "--kills", str(kills), "--after", str(after)]
    words += ["--settle", *map(str, settle)]
    job = world.script(
        words,
        replicas=ranks,
        image=PLAIN_TORCH,
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        template={
            "volumes": [{"name": "data", "hostPath": {"path": str(world.folder)}}],
            "affinity": apart,
        },
        recovery={"budget": {"inPlace": 1000, "perCause": 1000, "pod": 1000}, "nodes": {"avoid": True}},
    )
    world.submit(job)
    return job


def killed_ranks(world: World, ranks: int, kills: int) -> tuple[list[float], list[dict[str, float]]]:
    """Seconds from each death to the next step of all ranks, and the phase clocks."""
    scripted(world, ranks, kills, (25.0, 4.0))
    status = world.succeeded(limit_s=300 + 10 * kills)
    return recovery_times(world.folder, ranks, kills), closed_clocks(status)


def delete_pod(world: World, pod: str) -> Undo:
    world.kube.delete("Pod", pod, world.namespace)
    return lambda: None


def lose_node(machine: Own, world: World, pod: str) -> Undo:
    """Lose the node of a pod."""
    node = world.node_of(pod)
    machine.lose(node)
    return partial(machine.heal, node)


def disturbed(world: World, ranks: int, disturb: Disturb) -> tuple[float, dict[str, float]]:
    """Seconds from the disturbance to the next step of all ranks, by the ranks' own stamps, and the phase clock."""
    scripted(world, ranks, 0, (0.0, 0.0), after=1_000_000)
    world.wait(lambda status: status.get("phase") == "Running", "running", limit_s=240)
    world.wait_step(300, limit_s=240)  # by then the zygotes have learned
    before = time.monotonic_ns()
    undo = disturb(world, world.pod(ranks - 1))
    try:
        clock = wait_recovered(world)
        return (first_after(world.folder, ranks, before) - before) / 1e9, clock
    finally:
        undo()


def wait_recovered(world: World) -> dict[str, float]:
    """Until the operator's account of a recovery is closed; its phase clock, in seconds."""
    return world.wait(lambda status: next(reversed(closed_clocks(status)), None), "recovered", limit_s=180)


def first_after(folder: Path, ranks: int, since_ns: int, limit_s: float = 30.0) -> int:
    """When the last rank completed its first step of a round that began after `since_ns`."""
    deadline = time.monotonic() + limit_s
    while True:
        firsts: dict[int, int] = {}  # of each rank
        for stamp in recovery_stamps.read(folder, ranks):
            if stamp.event == "first" and stamp.at_ns > since_ns:
                firsts.setdefault(stamp.rank, stamp.at_ns)
        if len(firsts) == ranks:
            return max(firsts.values())
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(firsts)} of {ranks} ranks stepped again")
        time.sleep(0.1)  # the job's status may tell of the step before a rank has written it down


def successor(world: World, installation: Installation, end: Callable[[str], None]) -> float:
    """Seconds from the leader's end to the first pod of a job that is submitted right after it."""
    job = world.script(["true"], name="probe", replicas=1)
    leader = installation.leader()
    began = time.monotonic()
    end(leader)
    world.submit(job)
    pod = world.pod(0, name="probe")
    world.kube.wait("Pod", pod, world.namespace, lambda found: found is not None, "created", 60)
    took = time.monotonic() - began
    world.delete("probe")
    installation.wait_ready()
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=8, help="of a rank's process, in one run")
    parser.add_argument("--repetitions", type=int, default=3, help="of everything else")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, ranks=1, kills=1, repetitions=1)
    kube = Kube(places.KUBECONFIG, places.BIN / "kubectl")
    installation = Installation(kube, places.BIN / "helm")
    installation.install()
    ranks = given.ranks
    cases: list[Case] = []

    def told(case: Case, clocks: list[dict[str, float]]) -> None:
        cases.extend([case, *clock_cases(case, clocks)])
        print(f"{case.case:28} {' '.join(f'{s:.2f}' for s in case.samples)}", flush=True)
        if not given.no_write:
            write("cluster-recovery", cases)

    with opened(kube, installation, "bench-kill") as world:
        times, clocks = killed_ranks(world, ranks, given.kills)
    told(Case(f"{ranks} pods, a rank killed", "trainmaster", "s", times), clocks)

    disturbances: dict[str, Disturb] = {"a pod deleted": delete_pod, "a node lost": partial(lose_node, Own())}
    for what, disturb in disturbances.items():
        case, clocks = Case(f"{ranks} pods, {what}", "trainmaster", "s"), []
        for number in range(given.repetitions):
            with opened(kube, installation, f"bench-{what.split()[1]}-{number}") as world:
                seconds, clock = disturbed(world, ranks, disturb)
            case.samples.append(seconds)
            clocks.append(clock)
        told(case, clocks)

    with opened(kube, installation, "bench-leader") as world:
        ends: dict[str, Callable[[str], None]] = {
            "leader told to end": lambda pod: kube.delete("Pod", pod, NAMESPACE),
            "leader killed": lambda pod: world.kill_container(pod, NAMESPACE),
        }
        for what, end in ends.items():
            samples = [successor(world, installation, end) for _ in range(given.repetitions)]
            told(Case(f"{what}, successor acts", "trainmaster", "s", samples), [])

    print(table(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
