"""What jobs cost the operator that don't need it: memory and CPU of jobs at rest, and of a thousand pods turning Ready.

    python -m benchmarks.idle [--jobs 200] [--pods 8] [--seconds 120] [--large 1000] [--no-write]

Needs the cluster of `make cluster`; the nodes of the pods only pretend, so no agent speaks. What agents cost is
measured by fleet.py.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks import counts, kwok
from benchmarks.record import Case, write
from benchmarks.recovery import table
from e2e.cluster import places
from e2e.installation import Installation
from e2e.kube import Kube

SPACE = "bench-idle"
GATE = {"benchmark.example/gate": "open"}
SETTLED_S = 10.0  # after which nothing that has happened before is still being answered


class Meter:
    """What the operator has used between two looks, by replica."""

    def __init__(self, kube: Kube, installation: Installation) -> None:
        self._kube, self._installation = kube, installation
        self.cases: list[Case] = []
        self._last = self._look()

    def _look(self) -> dict[str, kwok.Usage]:
        leader = self._installation.leader()
        names = [pod["metadata"]["name"] for pod in self._installation.replicas()]
        return {"leader" if name == leader else "standby": kwok.usage(self._kube, name) for name in names}

    def read(self, what: str) -> None:
        """Tells what was used since the last look."""
        now, before = self._look(), self._last
        for replica in sorted(now):
            self.cases.append(Case(f"{what}, CPU", replica, "s", [now[replica].cpu_s - before[replica].cpu_s]))
            self.cases.append(Case(f"{what}, memory", replica, "MiB", [now[replica].memory_mib]))
            for case in self.cases[-2:]:
                print(f"{case.case:48} {case.system:8} {case.samples[0]:8.2f} {case.unit}", flush=True)
        self._last = self._look()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--pods", type=int, default=8, help="of each job")
    parser.add_argument("--seconds", type=float, default=120.0, help="of rest")
    parser.add_argument("--large", type=int, default=1000, help="pods of the one job whose pods turn Ready at once")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, jobs=1, pods=1, large=1)
    kube = Kube(places.KUBECONFIG, places.BIN / "kubectl")
    installation = kwok.install(kube)
    with kwok.fake_nodes(), kwok.space(kube, SPACE):
        meter = Meter(kube, installation)
        time.sleep(given.seconds)
        meter.read(f"no jobs for {given.seconds:g} s")

        watch = kwok.Watch(kube, SPACE, given.jobs * given.pods)
        for number in range(given.jobs):
            kube.create(kwok.job(f"job-{number}", SPACE, given.pods))
        watch.seen()
        watch.run()
        watch.close()
        time.sleep(SETTLED_S)
        meter.read(f"{given.jobs} jobs of {given.pods} pods come")
        time.sleep(given.seconds)
        meter.read(f"{given.jobs} idle jobs of {given.pods} pods for {given.seconds:g} s")
        kwok.empty(kube, SPACE)
        time.sleep(SETTLED_S)
        meter.read(f"{given.jobs} jobs of {given.pods} pods go")

        watch = kwok.Watch(kube, SPACE, given.large)
        kube.create(kwok.job("large", SPACE, given.large, GATE))
        watch.seen()
        time.sleep(SETTLED_S)
        meter.read(f"{given.large} pods of a job are created")
        kube.kubectl("label", "nodes", "--selector=type=kwok", *(f"{name}={value}" for name, value in GATE.items()))
        watch.run()
        watch.close()
        time.sleep(SETTLED_S)
        meter.read(f"{given.large} pods of a job turn Ready")
        kwok.empty(kube, SPACE)
    print(table(meter.cases))
    if not given.no_write:
        print(f"written to {write('idle', meter.cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
