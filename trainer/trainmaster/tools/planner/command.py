"""Reads a training config as JSON, and prints its layouts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import torch

from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import memory_tier_size
from trainmaster.errors import ConfigError
from trainmaster.host import memory_reserve
from trainmaster.host.processes import available_cpus
from trainmaster.parallel.stages import partition
from trainmaster.tools import closed_stdout
from trainmaster.tools.planner import layout_table, storage_need
from trainmaster.tools.planner.calibration import figures
from trainmaster.tools.planner.estimate import Estimate, best_first
from trainmaster.tools.planner.layouts import Layout, legal
from trainmaster.tools.planner.machine import Machine, assumed, shared
from trainmaster.tools.planner.measure import Measurer, measurer
from trainmaster.tools.planner.rank_work import stages
from trainmaster.tools.planner.survey import Survey

RECOMPUTE = ("None", "Selective", "Full")
"""What `--recompute all` compares. Reversible is left out, because it is for reversible models only."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the layouts of the training config on standard input, best first. Return the exit code."""
    parser = argparse.ArgumentParser(prog="trainmaster plan")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--memory", type=int, metavar="BYTES")
    parser.add_argument("--tflops", type=float)
    parser.add_argument("--bandwidth", type=float, metavar="GB/S")
    parser.add_argument("--between-nodes", type=float, metavar="GB/S")
    parser.add_argument("--ranks-per-node", type=int, default=1, metavar="N")
    parser.add_argument("--top", type=int, required=True, metavar="N")
    parser.add_argument("--measure", type=int, default=0, metavar="N")
    parser.add_argument("--recompute", choices=["all"])
    parser.add_argument("--keep", type=int, metavar="N")
    parser.add_argument("--ram-limit", type=int, metavar="BYTES")
    parser.add_argument("--ram-peers", type=int, default=0, metavar="N")
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args(arguments)
    config = TrainingConfig.model_validate_json(sys.stdin.read())
    try:
        machine, doubt = _machine(config, options)  # before anything here runs an operation of torch
    except RuntimeError as error:
        sys.stderr.write(
            f"trainmaster: this machine couldn't be measured: {error}; describe it by --tflops and --bandwidth\n"
        )
        return 1
    if doubt:
        sys.stderr.write(
            f"trainmaster: this machine's speed is doubtful: {doubt}. Other programs probably use the CPU. The times "
            f"below rest on this measurement, which isn't kept; run the command again when the machine is quiet, or "
            f"describe the machine that will train by --tflops and --bandwidth.\n"
        )
    try:
        with measurer() if options.measure else nullcontext() as measuring:
            return _plan(config, options, machine, measuring)
    except BrokenPipeError:
        return closed_stdout.closed()


def _plan(config: TrainingConfig, options: argparse.Namespace, machine: Machine, measuring: Measurer | None) -> int:
    try:
        survey = Survey(config.model)
    except ConfigError as error:
        sys.stderr.write(f"trainmaster: {error}\n")
        return 2
    configs = [config]
    if options.recompute:
        configs = [config.model_copy(update={"recompute": kind}) for kind in RECOMPUTE]
    with closing(_shown([layout for one in configs for layout in legal(one, options.ranks)])) as layouts:
        estimates = best_first(layouts, survey, machine)
    if options.json and (why := _written(options.json, layout_table.as_json(estimates))):
        sys.stderr.write(f"trainmaster: --json {options.json}: can't be written: {why}\n")
        return 2
    sys.stdout.write(
        layout_table.heading(config.model.name, survey.inventory.size, options.ranks, machine, options.memory)
    )
    table = layout_table.rows(estimates[: options.top], recompute=bool(options.recompute))
    sys.stdout.write("\n" + "".join(f"{row}\n" for row in table))
    _end(estimates, options, survey, config, machine)
    if options.ram_limit is not None and estimates[0].fits:
        in_pod = min(options.ranks, options.ranks_per_node)
        copies = bool(options.ram_peers) and in_pod < options.ranks
        sys.stdout.write(memory_need(estimates[0].saved, in_pod, options.ram_limit, copies=copies))
    if options.keep is not None:
        replicas = estimates[0].layout.degrees["dpReplicate"]
        size = storage_need.size(config, survey.inventory, replicas)
        sys.stdout.write(storage_need.words(size, options.keep))
    fitting = [e for e in estimates if e.fits][: options.measure]
    return _measure(fitting, measuring, recompute=bool(options.recompute)) if fitting and measuring else 0


def _shown(layouts: Sequence[Layout]) -> Generator[Layout, None, None]:
    """Yield the layouts, and show on a terminal how many of them are compared. The line is removed at the end, also if
    the generator is closed before."""
    shows = sys.stderr.isatty()
    try:
        for number, layout in enumerate(layouts):
            if shows:
                sys.stderr.write(f"\r{number} of {len(layouts)} layouts are compared")
                sys.stderr.flush()
            yield layout
    finally:
        if shows:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _written(file: Path, text: str) -> str:
    """Write the text to a file. Return why it could not be written, or ""."""
    try:
        file.write_text(text)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _measure(estimates: Sequence[Estimate], measuring: Measurer, *, recompute: bool) -> int:
    ranks = estimates[0].layout.ranks
    sys.stdout.write(
        f"\nMeasured on this machine: {ranks} process{'es' if ranks > 1 else ''} on {os.cpu_count()} CPU cores.\n"
    )
    try:
        measured = measuring.seconds([e.layout for e in estimates])
        for line in layout_table.comparison(estimates, measured, recompute=recompute):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except RuntimeError as error:
        sys.stderr.write(f"trainmaster: {error}\n")
        return 1
    return 0


def _machine(config: TrainingConfig, options: argparse.Namespace) -> tuple[Machine, str]:
    """Return (the machine, why its measurement is doubtful or "").

    It is this machine as measured, unless options describe another one or the ranks would have devices.
    """
    described = (options.tflops, options.bandwidth, options.between_nodes)
    if any(value is not None for value in described) or torch.cuda.is_available():
        described_one = assumed(
            options.tflops,
            options.bandwidth,
            _usable(options.memory, on_device=True),
            options.between_nodes,
            options.ranks_per_node,
        )
        return described_one, ""
    found, doubt = figures(config)
    return shared(found, available_cpus(), options.ranks, _usable(options.memory, on_device=False)), doubt


def _usable(memory: int | None, *, on_device: bool) -> int | None:
    return None if memory is None else memory_reserve.usable(memory, on_device=on_device)


def _end(
    estimates: Sequence[Estimate],
    options: argparse.Namespace,
    survey: Survey,
    config: TrainingConfig,
    machine: Machine,
) -> None:
    sys.stdout.write(f"\n{layout_table.counted(estimates, options.top)}\n")
    best = estimates[0]
    if not best.fits:
        sys.stdout.write(f"None fits: {layout_table.ways_out(config)} would help.\n")
        return
    sys.stdout.write(layout_table.slow_step_note(best, machine))
    sys.stdout.write(
        f"The best one, for spec.training:\n  parallelism: {_flow(best.layout.fields)}\n"
        f"  batch: {{global: {best.layout.config.batch.global_}, micro: {best.layout.micro_batches[0]}}}\n"
    )
    if options.recompute:
        sys.stdout.write(f"  recompute: {best.layout.config.recompute}\n")
    if best.layout.degrees["pp"] > 1:
        balance = best.layout.pipeline.balance
        unit = "parameters" if balance == "Parameters" else "operations"
        sys.stdout.write(f"{partition.table(stages(best.layout, survey), survey.costs(balance), unit)}\n")
        if balance == "Profile":
            sys.stdout.write("The ranks themselves will measure the time of each block, and may cut otherwise.\n")


def memory_need(saved: int, in_pod: int, limit: int, *, copies: bool) -> str:
    """Return a sentence for people: the memory that checkpoints of `saved` bytes of each rank need, and whether `limit`
    bytes are enough."""
    file = memory_tier_size.file_size(saved)
    said = memory_tier_size.shortage(file, in_pod, limit, copies=copies)
    if not said:
        need = memory_tier_size.need_words(file, in_pod, copies=copies)
        said = f"{need};\nspec.checkpoint.ram.limit, {memory_tier_size.exactly(limit)}, is enough"
    said = said.replace(", but ", ",\nbut ")  # the line would be longer than those of the table
    return f"Checkpoints in memory {said}.\n"


def _flow(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(item)}' for key, item in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)
