"""`trainmaster profile`: records a timeline of the next steps."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Asks all ranks of a training that is running to record their next steps. With the built-in trainer, rank 0 "
        "makes one page of the records: for a run, in the folder profile/ of its output folder; for a job on a "
        "cluster, beside its checkpoints, and rank 0 prints the place. In a script, each rank records by the profiler "
        "of its framework (torch.profiler, tf.profiler, jax.profiler), and TensorBoard opens the records: for a run, "
        "in the folder profile/ of its output folder; for a job on a cluster, the command waits for them and brings "
        "them to the folder --out. XGBoost has no profiler. On a cluster you need the right to pods/exec.\n\n"
        + common.WHAT,
        ("trainmaster profile runs/my-gpt", "records the next 3 steps"),
        ("trainmaster profile my-gpt -n team-a --steps 10", "10 steps of a job on a cluster"),
        ("trainmaster profile my-jax -n team-a --out traces", "records of a script on a cluster, in the folder traces"),
    )
    common.add_what(command)
    command.add_argument(
        "--steps", type=int, default=3, metavar="N", help="number of steps to record, 1 to 100 (default: 3)"
    )
    folder = command.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="for a script on a cluster: a new or empty folder for its records (default: ./profile-WHAT)",
    )
    common.completes(folder, common.Completes.FOLDER)
    command.add_argument(
        "--wait",
        type=float,
        default=600,
        metavar="SECONDS",
        help="for a script on a cluster: how long to wait for the records (default: 600)",
    )
    common.add_cluster(command)
    command.set_defaults(func=_profile)


def _profile(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.trainer_tools.profile_of_scripts import Wanted
    from trainmaster_operator.cli.trainer_tools.request_profile import profile

    return profile(options.what, Wanted(options.steps, options.out, options.wait), common.where(options))
