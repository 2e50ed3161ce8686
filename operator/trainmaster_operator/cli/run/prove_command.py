"""`trainmaster prove`: compares a job whose ranks are killed with the same job without faults."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Runs a job on this machine twice: once without faults, and once with ranks that are killed in random steps. "
        "Then compares the loss and every state after every step. If they differ, it names the first step and the "
        "states that differ. DIR gets the two runs, calm/ and killed/.",
        ("trainmaster prove job.yaml", "three kills, in steps that are chosen at random"),
        ("trainmaster prove job.yaml --kills 5 --seed 7", "five kills, in the same steps each time"),
        exit_codes=(
            (0, "Both runs have the same losses and states."),
            (1, "They differ, or the job did not survive the kills."),
            (2, "The job was refused, or it fails without any kill."),
            (130, "The command was stopped."),
        ),
    )
    common.add_job(command)
    command.add_argument("--kills", type=int, default=3, metavar="N", help="number of kills, 1 to 8 (default: 3)")
    command.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed that chooses the steps and ranks (default: a different one each time)",
    )
    command.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="compare only the losses, which may differ by X relative to their size, for example 1e-6",
    )
    common.add_folder(command, "--out", metavar="DIR", help="output folder of both runs (default: runs/prove-JOB-NAME)")
    common.add_plain(command)
    command.set_defaults(func=_prove)


def _prove(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.run.prove import ProveOptions, prove

    return prove(ProveOptions(options.job, options.out, options.kills, options.seed, options.tolerance, options.plain))
