"""The figures from which the time of a step is computed, and where they come from. It imports no torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

TFLOPS, BANDWIDTH = 100.0, 25.0
"""Assumed speed of a rank with a device, in 10^12 operations per second and in 10^9 bytes sent per second."""

LAUNCH_S = 5e-6
"""Seconds that a host takes to start an operation on a device, while the device computes other operations."""
LINK_S = 20e-6
"""Seconds that a collective takes between devices, even if it sends very little."""


@dataclass(frozen=True)
class Figures:
    """The figures of this machine, measured by one thread of each of two processes."""

    flops: float  # floating-point operations in a second
    bandwidth: float  # bytes that a process sends in a second
    operation_s: float  # seconds of an operation of torch whose tensors are small
    collective_s: float  # seconds of a collective of few bytes


@dataclass(frozen=True)
class Machine:
    """The speed of a rank. With `queues`, operations wait for a device, so that starting them takes no time of its
    own."""

    flops: float  # floating-point operations in a second
    bandwidth: float  # bytes that it sends in a second
    memory: int | None  # bytes that the tensors of a rank may take; None: not limited
    operation_s: float = 0.0  # fixed seconds of each operation, in addition to its computation
    collective_s: float = 0.0  # fixed seconds of each collective, in addition to its bytes
    queues: bool = False
    between: float | None = None  # bytes that it sends to other nodes in a second; None: as within a node
    ranks_per_node: int = 0  # 0: where nodes end makes no difference
    basis: str = ""  # what the figures rest on, in words

    @property
    def between_nodes(self) -> float:
        return self.bandwidth if self.between is None else self.between

    def computes_s(self, flops: float, operations: float) -> float:
        """Return the seconds of `operations`, which compute `flops` together."""
        work, calls = flops / self.flops, operations * self.operation_s
        return max(work, calls) if self.queues else work + calls

    def sends_s(self, sent: Mapping[str, float], collectives: float, across: Collection[str] = ()) -> float:
        """Return the seconds of `collectives`, which send these bytes by axis. `across` are the axes between nodes."""
        slow = math.fsum(size for axis, size in sent.items() if axis in across)
        fast = math.fsum(size for axis, size in sent.items() if axis not in across)
        return fast / self.bandwidth + slow / self.between_nodes + collectives * self.collective_s


def assumed(
    tflops: float | None,
    bandwidth: float | None,
    memory: int | None,
    between_nodes: float | None = None,
    ranks_per_node: int = 1,
) -> Machine:
    """Return a machine whose ranks have devices. A figure that is not given has the usual value.

    Without `between_nodes` all links have the same speed, whatever `ranks_per_node` is.
    """
    options = (("--tflops", tflops), ("--bandwidth", bandwidth))
    words = [f"{name} as given" if value is not None else f"{name} assumed" for name, value in options]
    if between_nodes is not None:
        words.append(f"--between-nodes as given, {_counted(ranks_per_node, 'rank')} on each node (ranksPerPod)")
    words += [f"{LAUNCH_S * 1e6:g} us to start an operation", f"{LINK_S * 1e6:g} us for a collective"]
    return Machine(
        flops=(TFLOPS if tflops is None else tflops) * 1e12,
        bandwidth=(BANDWIDTH if bandwidth is None else bandwidth) * 1e9,
        memory=memory,
        operation_s=LAUNCH_S,
        collective_s=LINK_S,
        queues=True,
        between=None if between_nodes is None else between_nodes * 1e9,
        ranks_per_node=0 if between_nodes is None else ranks_per_node,
        basis=f"a rank with a device: {', '.join(words)}",
    )


def shared(figures: Figures, cores: int, ranks: int, memory: int | None) -> Machine:
    """Return one of `ranks` ranks on this machine, which share its cores."""
    share = cores / ranks  # of a rank
    slower = max(1.0, 1 / share)
    return Machine(
        flops=figures.flops * (int(share) if share >= 1 else share),
        bandwidth=figures.bandwidth / slower,
        memory=memory,
        operation_s=figures.operation_s * slower,
        collective_s=figures.collective_s * slower,
        basis=f"this machine as measured, its {_counted(cores, 'CPU core')} shared by {_counted(ranks, 'rank')}: "
        f"{_short(figures.operation_s * slower)} an operation, {_short(figures.collective_s * slower)} a "
        f"collective; other machines are described by --tflops and --bandwidth",
    )


def _short(seconds: float) -> str:
    """Return seconds as text: 0.0000276 is "27.6 us", and 0.00286 is "2.86 ms"."""
    return f"{seconds * 1e6:.3g} us" if seconds < 0.9995e-3 else f"{seconds * 1e3:.3g} ms"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
