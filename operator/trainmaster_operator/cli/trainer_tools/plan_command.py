"""`trainmaster plan`: lists the parallel layouts of a job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Lists the parallel layouts that a job can have, the fastest first, with the memory that a rank needs and the "
        "bytes that it sends, and says how large checkpoints are on storage and in the memory of a pod. The job's data "
        "and weights are not needed. The time of a step is an estimate for this "
        "machine, whose CPU is measured once; with --tflops and --bandwidth, it is an estimate for the machine that "
        "they describe. With --between-nodes, the links between nodes are slower than those within a node; a node has "
        "as many ranks as a pod of the job (ranksPerPod).",
        ("trainmaster plan job.yaml", "layouts of the job on its own number of ranks"),
        ("trainmaster plan job.yaml --ranks 8 --memory 40Gi", "on 8 ranks; those that need more memory come last"),
        (
            "trainmaster plan job.yaml --memory 79Gi --tflops 400 --bandwidth 450",
            "on GPUs of 80 GB (79 GiB) that compute 400 TFLOP/s and send 450 GB/s",
        ),
    )
    common.add_job(command)
    command.add_argument("--ranks", type=int, metavar="N", help="number of ranks (default: the job's)")
    command.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory of a rank, for example 40Gi; a reserve of it is left, and layouts that need more are listed last",
    )
    command.add_argument(
        "--tflops", type=float, metavar="X", help="speed of a rank, in 10^12 operations per second (default: measured)"
    )
    command.add_argument(
        "--bandwidth", type=float, metavar="X", help="what a rank can send, in GB per second (default: measured)"
    )
    command.add_argument(
        "--between-nodes",
        type=float,
        metavar="X",
        help="what a rank can send to a rank on another node, in GB per second (default: as within a node)",
    )
    command.add_argument(
        "--recompute",
        choices=["all"],
        help="compare layouts with recompute None, Selective and Full, and not only with that of the job; this takes "
        "three times as long",
    )
    command.add_argument("--top", type=int, default=16, metavar="N", help="number of layouts to list (default: 16)")
    command.add_argument(
        "--measure",
        type=int,
        nargs="?",
        const=3,
        default=0,
        metavar="N",
        help="train some steps of the best N layouts on the CPU of this machine, with one process for each rank (N if "
        "not given: 3)",
    )
    command.add_argument("--json", metavar="FILE", type=Path, help="also write all layouts to this file, as JSON")
    command.set_defaults(func=_plan)


def _plan(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.trainer_tools.plan_layouts import PlanOptions, plan

    return plan(
        PlanOptions(
            options.job,
            options.ranks,
            options.memory,
            options.tflops,
            options.bandwidth,
            options.between_nodes,
            options.recompute == "all",
            options.top,
            options.measure,
            options.json,
        )
    )
