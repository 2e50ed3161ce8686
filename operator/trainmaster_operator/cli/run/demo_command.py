"""`trainmaster demo`: runs a job that loses a rank."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Trains a small GPT on four ranks of this machine, on the source of Python's standard library. In the middle "
        "of the run, rank 2 is killed. The demo shows the recovery, and checks that each step that ran twice had the "
        "same loss both times. DIR gets report.html with the curves. What an earlier demo left in DIR is deleted.",
        ("trainmaster demo", "writes to runs/demo"),
        ("trainmaster demo --out runs/second --plain", "writes to runs/second, and prints lines of text"),
        exit_codes=(
            (0, "The run succeeded, and no loss was different."),
            (1, "The run failed, or a step that ran twice had a different loss."),
            (2, "The demo was refused, and nothing was started."),
            (130, "The demo was stopped."),
        ),
    )
    common.add_folder(
        command, "--out", metavar="DIR", default=Path("runs/demo"), help="output folder of the run (default: runs/demo)"
    )
    command.add_argument(
        "--port",
        type=int,
        default=0,
        help="port of the control channel and of /metrics on 127.0.0.1 (default: any free port)",
    )
    common.add_plain(command)
    command.set_defaults(func=_demo)


def _demo(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.run.demo import demo

    return demo(options.out, plain=options.plain, port=options.port)
