"""Estimates for a person to read, and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainmaster.planner import communication
from trainmaster.planner.estimate import Estimate, Machine

UNITS = ("", "K", "M", "G", "T", "P")
HEAD = (
    f"{'layout':34} {'micro':>8} {'param':>6} {'grad':>6} {'optim':>6} {'activ':>6} {'buffer':>6} {'peak':>6} "
    f"{'sent':>6} {'bubble':>6} {'step':>7}"
)


def heading(name: str, size: int, ranks: int, machine: Machine) -> str:
    limit = f", {amount(machine.memory)} each" if machine.memory is not None else ""
    return (
        f"{name}, {size:,} parameters, on {ranks} rank{'s' if ranks > 1 else ''}{limit}. Bytes of the fullest rank "
        f"(K = 1024).\n"
        f"step: if a rank does {machine.flops / 1e12:g} TFLOP/s and sends {machine.bandwidth / 1e9:g} GB/s, one after "
        f"the other.\n"
    )


def line(estimate: Estimate) -> str:
    memory = estimate.memory
    micro, count = estimate.layout.micro_batches
    sizes = [
        memory.held.parameters,
        memory.held.gradients,
        memory.held.optimizer,
        memory.activations,
        memory.buffers,
        memory.peak,
        communication.total(estimate.sent),
    ]
    numbers = " ".join(f"{amount(n):>6}" for n in sizes)
    fits = "" if estimate.fits else "  too large"
    return (
        f"{estimate.layout.name:34} {f'{micro} x {count}':>8} {numbers} {estimate.bubble:6.1%} "
        f"{duration(estimate.seconds):>7}{fits}"
    )


def amount(size: float) -> str:
    """At most six characters."""
    for unit in UNITS:
        if size < 999.5 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f}{unit}" if size >= 99.95 or not unit else f"{size:.1f}{unit}"


def duration(seconds: float) -> str:
    """At most seven characters."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale or unit == "us":
            break
    return f"{seconds / scale:.4g} {unit}"


def as_json(estimates: Sequence[Estimate]) -> str:
    return json.dumps({"layouts": [fields(estimate) for estimate in estimates]}, indent=1) + "\n"


def fields(estimate: Estimate) -> dict[str, Any]:
    memory, layout = estimate.memory, estimate.layout
    micro, count = layout.micro_batches
    return {
        "parallelism": layout.fields,
        "microBatch": micro,
        "microBatches": count,
        "memory": {
            "parameters": memory.held.parameters,
            "gradients": memory.held.gradients,
            "optimizer": memory.held.optimizer,
            "activations": memory.activations,
            "wholeParameters": memory.whole_parameters,
            "wholeGradients": memory.whole_gradients,
            "peak": memory.peak,
        },
        "sent": {axis: round(n) for axis, n in estimate.sent.items()},
        "bubble": estimate.bubble,
        "seconds": estimate.seconds,
        "fits": estimate.fits,
    }
