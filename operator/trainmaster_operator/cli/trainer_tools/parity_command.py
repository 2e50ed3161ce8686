"""`trainmaster parity`: compares each kind of parallelism with one process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Trains a small model on this machine with each kind of parallelism, and compares its losses and parameters "
        "with those of training in one process. Prints a table with one row for each combination.",
        ("trainmaster parity --list", "lists the rows, and trains nothing"),
        ("trainmaster parity --only tp", "trains the rows whose name contains tp"),
        exit_codes=(
            (0, "All rows are within the tolerance."),
            (1, "Some rows are not."),
            (2, "The arguments were refused."),
        ),
    )
    command.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="train only the rows whose name contains PATTERN; can be repeated",
    )
    command.add_argument("--list", action="store_true", help="list the rows, and train nothing")
    command.add_argument("--json", metavar="FILE", type=Path, help="also write the table to this file, as JSON")
    command.add_argument("--page", metavar="FILE", type=Path, help="also write the table to this file, as a page")
    command.set_defaults(func=_parity)


def _parity(options: argparse.Namespace) -> int:
    """Run the trainer's check of its parallel strategies. Raise Refusal."""
    from trainmaster_operator.cli.this_machine import trainer_process

    trainer_process.check_installed("parity")
    arguments = [word for pattern in options.only for word in ("--only", pattern)]
    arguments += ["--list"] if options.list else []
    for name, file in (("--json", options.json), ("--page", options.page)):
        trainer_process.check_file(name, file)
        arguments += [name, str(file)] if file is not None else []
    return trainer_process.run("parity", arguments, threads=1)  # There are many processes on few cores.
