"""A script's pods on a node that is lost, without a spare: where the time goes, from the pulled plug to the next step.

    python -m benchmarks.cluster_lost_node [--samples 6] [--ranks 2] [--lose-leader] [--no-write]

Needs the cluster of `make cluster`, whose controller manager takes 10 s to say that a node is lost, and not 50 s as by
default. All nodes share one machine and so one clock. The cluster is looked at five times a second, and the ranks write
down when a step is complete. Each phase begins where the one before it ends. The successor starts before the lost pod
is removed, so it may be scheduled and running by then.

The operator that leads is on another node, unless `--lose-leader` is given: then its node is the one that is lost. A
new leader can't know when the last one answered the lost agent, so it counts the proof's time from its own beginning.
No standby is on the node that is lost: for one that is, the leader waits for five minutes.

known       from the plug until the cluster says that the node is lost
removed     until the pod of the lost node has no object any more: until its ranks are sure to be dead
scheduled   until its successor has a node
running     until the successor runs
first step  until all ranks have completed a step of the next round
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from benchmarks import counts
from benchmarks.cluster_recovery import first_after, opened, scripted
from benchmarks.record import RESULTS, Case, load, write
from benchmarks.recovery import table
from e2e.cluster import places
from e2e.installation import NAMESPACE, Installation
from e2e.kube import Kube, Object
from e2e.machine import Own
from e2e.world import World

RESULT = "cluster-lost-node"
PHASES = ("known", "removed", "scheduled", "running", "first step")
LOOK_S = 0.2
LIMIT_S = 300.0
APART = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"trainmaster.dev/job": "job"}},
                },
            }
        ]
    }
}


def is_ready(node: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or [])


def when(holds: Callable[[], bool], what: str) -> float:
    """Return when it first holds, in seconds of the monotonic clock."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"{what}: not within {LIMIT_S:.0f} s")
        time.sleep(LOOK_S)
    return time.monotonic()


def place_leader(installation: Installation, node: str, there: bool) -> None:
    """See that the operator that leads is on the node if `there` is true, and else on another one."""
    leader = installation.leader()
    if (installation.node_of(leader) == node) is there:
        return
    installation.kube.delete("Pod", leader, NAMESPACE)
    installation.wait_ready()
    leader = installation.leader(other_than=leader)
    if (installation.node_of(leader) == node) is not there:
        raise SystemExit(f"no operator can lead {'on' if there else 'outside of'} {node}")


def move_standbys(installation: Installation, node: str) -> None:
    """See that no operator but the one that leads is on the node."""
    leader = installation.leader()
    names = [str(pod["metadata"]["name"]) for pod in installation.replicas()]
    there = [name for name in names if name != leader and installation.node_of(name) == node]
    installation.kube.kubectl("cordon", node)
    try:
        for name in there:
            installation.kube.delete("Pod", name, NAMESPACE)
        installation.wait_old_ended()
        installation.wait_ready()
    finally:
        installation.kube.kubectl("uncordon", node)


def sample(world: World, machine: Own, ranks: int, lose_leader: bool = False) -> dict[str, float]:
    """Lose the node of one pod, and return the seconds of each phase."""
    kube = world.kube
    scripted(world, ranks, 0, (0.0, 0.0), after=1_000_000, apart=APART)
    world.wait(lambda status: status.get("phase") == "Running", "running", limit_s=240)
    world.wait_step(300, limit_s=240)  # by then the zygotes have learned
    slot = next(s for s in reversed(range(ranks)) if world.node_of(world.pod(s)) != machine.steady)
    lost, successor = world.pod(slot), f"job-worker-{slot}-"
    node, uid = world.node_of(lost), kube.get("Pod", lost, world.namespace)["metadata"]["uid"]
    place_leader(world.installation, node, lose_leader)
    move_standbys(world.installation, node)
    world.wait_step(600, limit_s=240)  # The agents have found the leader again.

    def new() -> Object | None:
        pods = (pod for pod in world.pods() if pod["metadata"]["name"].startswith(successor))
        return next((pod for pod in pods if pod["metadata"]["uid"] != uid), None)

    before_ns, at = time.monotonic_ns(), [time.monotonic()]
    machine.lose(node)
    try:
        at.append(when(lambda: not is_ready(kube.get("Node", node)), f"{node} is lost"))
        at.append(when(lambda: kube.find("Pod", lost, world.namespace) is None, f"{lost} is removed"))
        at.append(when(lambda: bool((new() or {"spec": {}})["spec"].get("nodeName")), "the successor has a node"))
        at.append(when(lambda: (new() or {"status": {}})["status"].get("phase") == "Running", "the successor runs"))
        at.append(first_after(world.folder, ranks, before_ns, LIMIT_S) / 1e9)
    finally:
        machine.heal(node)
    return {phase: end - start for phase, start, end in zip(PHASES, at, at[1:], strict=False)}


def kept(name: str) -> list[Case]:
    """Return the stored cases of the other kind of loss."""
    if not (RESULTS / f"{RESULT}.json").exists():
        return []
    return [case for case in load(RESULT)[1] if not case.case.startswith(name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=2, help="pods of one rank each")
    parser.add_argument("--lose-leader", action="store_true", help="lose the node on which the operator leads")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, samples=1, ranks=1)
    kube = Kube(places.KUBECONFIG, places.BIN / "kubectl")
    installation = Installation(kube, places.BIN / "helm")
    installation.install()
    name = f"a script of {given.ranks} pods, a node lost{' with the leader' * given.lose_leader}, no spare"
    phases = {phase: Case(f"{name}, phase {phase}", "trainmaster", "s") for phase in PHASES}
    whole = Case(name, "trainmaster", "s")
    known = Case(f"{name}, once the cluster knows it", "trainmaster", "s")
    for number in range(given.samples):
        with opened(kube, installation, f"bench-lost-node-{number}") as world:
            seconds = sample(world, Own(), given.ranks, given.lose_leader)
        installation.wait_ready()
        for phase, case in phases.items():
            case.samples.append(seconds[phase])
        whole.samples.append(sum(seconds.values()))
        known.samples.append(sum(seconds.values()) - seconds["known"])
        print(" ".join(f"{phase} {seconds[phase]:.1f}" for phase in PHASES), flush=True)
        if not given.no_write:
            write(RESULT, [*kept(name), whole, known, *phases.values()])
    print(table([whole, known, *phases.values()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
