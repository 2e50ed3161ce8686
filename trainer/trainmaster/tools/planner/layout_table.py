"""Estimates as text for people, and as JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainmaster.contract.config import TrainingConfig
from trainmaster.tools.planner import communication
from trainmaster.tools.planner.estimate import Estimate
from trainmaster.tools.planner.machine import Machine

UNITS = ("", "K", "M", "G", "T", "P")
WIDTH = 106  # characters of a line
MICRO = 8  # and of the first column of numbers
COLUMNS = " ".join(f"{name:>6}" for name in ("param", "grad", "optim", "activ", "buffer", "peak", "sent", "bubble"))
COLUMNS += f" {'step':>8}"

TOO_SLOW_S = 3600.0
"""A step that takes longer than this on this machine's CPU means that the job is for other machines."""


def heading(name: str, size: int, ranks: int, machine: Machine, memory: int | None = None) -> str:
    """Return the lines above the table. `memory`: the bytes of a rank, of which its tensors may take a part."""
    limit = ""
    if memory is not None and machine.memory is not None:
        usable, whole = amount(machine.memory), amount(memory)
        limit = f"memory: a layout may use {usable} of the {whole} of a rank; the rest is a reserve.\n"
    elsewhere = f" ({machine.between / 1e9:.3g} GB/s to other nodes)" if machine.between is not None else ""
    return (
        f"{name}, {size:,} parameters, on {ranks} rank{'s' if ranks > 1 else ''}. Bytes of the fullest rank "
        f"(K = 1024).\n{limit}"
        f"step: a rank computes at {machine.flops / 1e12:.3g} TFLOP/s and then sends at "
        f"{machine.bandwidth / 1e9:.3g} GB/s{elsewhere}, by the figures of\n{textwrap.fill(machine.basis, WIDTH)}.\n"
    )


def rows(estimates: Sequence[Estimate], *, recompute: bool = False) -> list[str]:
    """Return a line of names, and one line for each estimate. `recompute`: the layouts differ in what they compute
    again, so their names say it."""
    names = [_name(estimate, recompute) for estimate in estimates]
    width = max(len("layout"), *map(len, names))
    micro = max(MICRO, *(len(_micro(estimate)) for estimate in estimates))
    return [
        f"{'layout':{width}} {'micro':>{micro}} {COLUMNS}",
        *(
            f"{name:{width}} {_micro(estimate):>{micro}} {_numbers(estimate)}"
            for name, estimate in zip(names, estimates, strict=True)
        ),
    ]


def counted(estimates: Sequence[Estimate], shown: int) -> str:
    """Say how many layouts are legal, how many of these fit, and how many are shown: a sentence on each line."""
    number, fitting = len(estimates), sum(e.fits for e in estimates)
    lines = [f"{number} layouts are legal." if number > 1 else "1 layout is legal."]
    if 0 < fitting < number:
        lines = [
            f"{number} layouts are legal; {fitting} of these {number} fit{'s' if fitting == 1 else ''} into the memory "
            f"of a rank, {number - fitting} need{'s' if number - fitting == 1 else ''} more."
        ]
    if shown < number:
        lines.append(f"The table shows the best {shown}; --top N changes that.")
    return "\n".join(lines)


def _name(estimate: Estimate, recompute: bool) -> str:
    layout = estimate.layout
    return f"{layout.name}, {layout.config.recompute}" if recompute else layout.name


def _micro(estimate: Estimate) -> str:
    micro, count = estimate.layout.micro_batches
    return f"{micro} x {count}"


def _numbers(estimate: Estimate) -> str:
    memory = estimate.memory
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
    return f"{numbers} {estimate.bubble:6.1%} {duration(estimate.seconds):>8}{fits}"


def ways_out(config: TrainingConfig) -> str:
    """Return what could make a layout fit and is not in the job yet, as the subject of a sentence."""
    ways = ["more ranks", "a smaller model or context"]
    ways += ["recompute Full"] if config.recompute == "None" else []
    ways += ["precision bf16"] if config.precision == "fp32" else []
    return f"{', '.join(ways[:-1])} or {ways[-1]}"


def slow_step_note(best: Estimate, machine: Machine) -> str:
    """Say that the times don't apply to GPUs, if the best layout's step would take too long on this machine's CPU."""
    if machine.queues or best.seconds <= TOO_SLOW_S:
        return ""
    return (
        "On the CPU of this machine a step would take more than an hour. These times don't show which layout is "
        "the\nfastest on GPUs: describe a GPU by --tflops and --bandwidth.\n"
    )


def comparison(estimates: Sequence[Estimate], seconds: Iterable[float], *, recompute: bool = False) -> Iterator[str]:
    """Yield a line of names, and one line for each estimate as soon as its step has been measured. `recompute`: as in
    `rows`."""
    width = max(len("layout"), *(len(_name(estimate, recompute)) for estimate in estimates))
    yield f"{'layout':{width}} {'measured':>9} {'tokens/s':>11} {'estimated':>10} {'tokens/s':>14}"
    for estimate, found in zip(estimates, seconds, strict=True):
        yield (
            f"{_name(estimate, recompute):{width}} {duration(found):>9} {estimate.tokens / found:11,.0f} "
            f"{duration(estimate.seconds):>10} {estimate.tokens / estimate.seconds:14,.0f}"
        )


def amount(size: float) -> str:
    """Return a size as text of at most six characters."""
    for unit in UNITS:
        if size < 999.5 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f}{unit}" if size >= 99.95 or not unit else f"{size:.1f}{unit}"


def duration(seconds: float) -> str:
    """Return a time as text of at most eight characters, in hours or days if seconds had more than five digits."""
    if seconds >= 99_999.5:
        hours = seconds / 3600
        return f"{hours:.0f} h" if hours < 99_999.5 else f"{min(hours / 24, 999_999):.0f} d"
    if seconds >= 9999.5:
        return f"{seconds:.0f} s"
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
        "recompute": layout.config.recompute,
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
        "saved": estimate.saved,
        "sent": {axis: round(n) for axis, n in estimate.sent.items()},
        "bubble": estimate.bubble,
        "seconds": estimate.seconds,
        "fits": estimate.fits,
    }
