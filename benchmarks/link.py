"""Steps of two replicas over a slow link: whole gradients beside compressed ones, and beside islands.

    python -m benchmarks.link [--rates 100mbit 1gbit] [--rounds 3] [--steps 6] [--no-write]

Each rank lives in a network namespace of its own; between them there is one pair of virtual interfaces, which `tc` lets
send no faster than the rate. The namespaces belong to two processes, and end with them. Ranks run our own loop, as a
job would; what a step takes is rank 0's own account of it, what it sends the interface's. Islands run two of their
turns; a step's sample is the mean of all of them, since one in a turn exchanges something. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import counts, worlds
from benchmarks.record import Case, name_of, write
from trainmaster.host import processes

ADDRESSES = ("10.0.0.1", "10.0.0.2")


def compressed(**how: Any) -> dict[str, Any]:
    return {"communication": {"compression": how}}


def islands(**outer: Any) -> dict[str, Any]:
    return {"parallelism": {"island": len(ADDRESSES)}, "communication": {"outer": outer}}


METHODS: dict[str, dict[str, Any]] = {
    "whole gradients": {},
    "bf16": compressed(method="bf16"),
    "fp16": compressed(method="fp16"),
    "PowerSGD, rank 4": compressed(method="PowerSGD", rank=4),
    "PowerSGD, rank 8": compressed(method="PowerSGD"),
    "TopK, 1 %": compressed(method="TopK", share=0.01),
    "TopK, 10 %": compressed(method="TopK"),
    "islands, every 50 steps": islands(every=50),
    "islands, every 100 steps in bf16": islands(every=100, send="bf16"),
}
RATES = ["100mbit", "1gbit"]  # as tc takes them
WARM_UP = 3  # steps
LEAST = 3.0  # of how many times faster a step has to be at 100 Mbit/s
LESS = 100.0  # times, that islands have to send


class Link:
    """Two namespaces and what joins them."""

    def __init__(self, rate: str) -> None:
        # Nothing in them but us: no name that would have to be removed, no interface outside.
        hold = ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"]
        tied = partial(processes.die_with_parent, os.getpid())
        self._holders = [subprocess.Popen(hold, stdout=subprocess.PIPE, preexec_fn=tied) for _ in ADDRESSES]
        try:
            self._join(rate)
        except BaseException:
            self.close()
            raise

    def _join(self, rate: str) -> None:
        """Put an interface with this rate into each namespace. Raises SystemExit if a command fails."""
        for holder in self._holders:
            assert holder.stdout is not None
            holder.stdout.readline()  # it is in its namespace
        other = str(self._holders[1].pid)
        self.run(0, "ip", "link", "add", "link0", "type", "veth", "peer", "name", "link1", "netns", other)
        for rank, address in enumerate(ADDRESSES):
            interface = f"link{rank}"
            self.run(rank, "ip", "address", "add", f"{address}/24", "dev", interface)
            for name in ("lo", interface):
                self.run(rank, "ip", "link", "set", name, "up")
            shape = ("tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
            self.run(rank, "tc", "qdisc", "add", "dev", interface, "root", *shape)

    def run(self, rank: int, *command: str) -> str:
        done = subprocess.run(self.inside(rank, *command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"link: {' '.join(command)} failed: {done.stderr.strip()}")
        return done.stdout

    def inside(self, rank: int, *command: str) -> list[str]:
        return ["nsenter", "--net", f"--target={self._holders[rank].pid}", *command]

    def sent(self, rank: int) -> int:
        """Bytes so far, of all that a rank's interface has sent."""
        told = json.loads(self.run(rank, "ip", "-json", "-statistics", "link", "show", f"link{rank}"))
        count: int = told[0]["stats64"]["tx"]["bytes"]
        return count

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()


@contextlib.contextmanager
def link(rate: str) -> Iterator[Link]:
    found = Link(rate)
    try:
        yield found
    finally:
        found.close()


def turn(method: dict[str, Any]) -> int:
    """Steps from one exchange of islands to the next; 0: all steps are alike."""
    every: int = method.get("communication", {}).get("outer", {}).get("every", 0)
    return every


def config(method: dict[str, Any], steps: int) -> dict[str, Any]:
    return {
        "model": {"options": {"layers": 4, "width": 256, "heads": 4, "context": 128}},
        "data": {"path": "@stdlib"},
        "steps": steps,
        "batch": {"global": 4},
        "parallelism": {"dpReplicate": len(ADDRESSES)},
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every": steps},
        **method,
    }


def train(between: Link, method: dict[str, Any], steps: int) -> tuple[list[float], float]:
    """(seconds of each step after the warm-up, bytes that rank 0 has sent in the run, by steps)."""
    steps = 2 * turn(method) or steps
    before = between.sent(0)
    lines = worlds.train(
        config(method, steps),
        len(ADDRESSES),
        inside=between.inside,
        address=ADDRESSES[0],
        port=29500,  # nobody else is there
        interface=lambda rank: f"link{rank}",
    )
    seconds = [line["seconds"] for line in lines[WARM_UP:]]
    if turn(method):
        seconds = [sum(seconds) / len(seconds)]
    return seconds, (between.sent(0) - before) / steps


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--rates", nargs="+", default=RATES, help="as tc takes them")
    arguments.add_argument("--rounds", type=int, default=3, help="of all methods in turn")
    arguments.add_argument("--steps", type=int, default=6, help="of each method in a round, after the warm-up")
    arguments.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    given = arguments.parse_args()
    counts.check(arguments, given, rounds=1, steps=1)
    cases: list[Case] = []
    good = True
    for rate in given.rates:
        seconds = {name: Case(f"a step, {rate}", name, "s") for name in METHODS}
        sent = {name: Case(f"sent in a step, {rate}", name, "bytes") for name in METHODS}
        with link(rate) as between:
            for _ in range(given.rounds):
                for name, method in METHODS.items():
                    took, count = train(between, method, WARM_UP + given.steps)
                    seconds[name].samples += took
                    sent[name].samples.append(count)
        whole = seconds["whole gradients"].median
        for name in METHODS:
            faster = whole / seconds[name].median
            print(f"{rate:>8} {name:32} {seconds[name].median:8.3f} s {sent[name].median / 1e6:8.3f} MB {faster:6.2f}x")
        if rate == "100mbit":
            best = max(whole / seconds[name].median for name in METHODS if "PowerSGD" in name or "TopK" in name)
            print(f"{rate:>8} the best of PowerSGD and TopK is {best:.1f} times as fast; the goal is {LEAST:.0f}")
            less = sent["whole gradients"].median / min(sent[name].median for name in METHODS if turn(METHODS[name]))
            print(f"{rate:>8} islands send {less:.0f} times less at best; the goal is {LESS:.0f}")
            good = best >= LEAST and less >= LESS
        cases += [*seconds.values(), *sent.values()]
    if not given.no_write:
        print(f"written: {write(name_of('link', given.rates, RATES), cases)}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
