"""`trainmaster profile`: records a timeline of the next steps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Asks all ranks of a training that is running to record their next steps. Rank 0 makes one page of the "
        "records: for a run, in the folder profile/ of its output folder; for a job on a cluster, beside its "
        "checkpoints, and rank 0 prints the place. On a cluster you need the right to pods/exec.\n\n" + common.WHAT,
        ("trainmaster profile runs/my-gpt", "records the next 3 steps"),
        ("trainmaster profile my-gpt -n team-a --steps 10", "10 steps of a job on a cluster"),
    )
    common.add_what(command)
    command.add_argument(
        "--steps", type=int, default=3, metavar="N", help="number of steps to record, 1 to 100 (default: 3)"
    )
    common.add_cluster(command)
    command.set_defaults(func=_profile)


def _profile(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.trainer_tools.request_profile import profile

    return profile(options.what, options.steps, common.where(options))
