"""Estimates for a person to read, and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainmaster.planner import communication
from trainmaster.planner.estimate import Estimate, Machine

UNITS = ("", "K", "M", "G", "T", "P")
COLUMNS = (
    f"{'micro':>8} {'param':>6} {'grad':>6} {'optim':>6} {'activ':>6} {'buffer':>6} {'peak':>6} {'sent':>6} "
    f"{'bubble':>6} {'step':>8}"
)


def heading(name: str, size: int, ranks: int, machine: Machine) -> str:
    limit = f", {amount(machine.memory)} each" if machine.memory is not None else ""
    return (
        f"{name}, {size:,} parameters, on {ranks} rank{'s' if ranks > 1 else ''}{limit}. Bytes of the fullest rank "
        f"(K = 1024).\n"
        f"step: if a rank does {machine.flops / 1e12:g} TFLOP/s and sends {machine.bandwidth / 1e9:g} GB/s, one after "
        f"the other.\n"
    )


def rows(estimates: Sequence[Estimate]) -> list[str]:
    """A line of names, and one for each estimate."""
    width = max(len("layout"), *(len(estimate.layout.name) for estimate in estimates))
    return [
        f"{'layout':{width}} {COLUMNS}",
        *(f"{estimate.layout.name:{width}} {_numbers(estimate)}" for estimate in estimates),
    ]


def _numbers(estimate: Estimate) -> str:
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
    return f"{f'{micro} x {count}':>8} {numbers} {estimate.bubble:6.1%} {duration(estimate.seconds):>8}{fits}"


def comparison(estimates: Sequence[Estimate], seconds: Iterable[float]) -> Iterator[str]:
    """A line of names, and one for each estimate as soon as its step has been measured."""
    width = max(len("layout"), *(len(estimate.layout.name) for estimate in estimates))
    yield f"{'layout':{width}} {'measured':>9} {'tokens/s':>11} {'estimated':>10} {'tokens/s':>14}"
    for estimate, found in zip(estimates, seconds, strict=True):
        yield (
            f"{estimate.layout.name:{width}} {duration(found):>9} {estimate.tokens / found:11,.0f} "
            f"{duration(estimate.seconds):>10} {estimate.tokens / estimate.seconds:14,.0f}"
        )


def amount(size: float) -> str:
    """At most six characters."""
    for unit in UNITS:
        if size < 999.5 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f}{unit}" if size >= 99.95 or not unit else f"{size:.1f}{unit}"


def duration(seconds: float) -> str:
    """At most eight characters."""
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
            "recomputed": memory.recomputed,
            "wholeParameters": memory.whole_parameters,
            "wholeGradients": memory.whole_gradients,
            "received": memory.received,
            "peak": memory.peak,
        },
        "sent": {axis: round(n) for axis, n in estimate.sent.items()},
        "bubble": estimate.bubble,
        "seconds": estimate.seconds,
        "fits": estimate.fits,
    }
