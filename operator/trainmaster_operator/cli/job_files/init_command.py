"""`trainmaster init`: writes a first job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Writes the file of a first job, with comments. Without --script, the job trains a small GPT "
        "with Trainmaster's own trainer, on text that every machine with Python has. With --script, it runs your "
        "script as torchrun would. A file that exists already is never overwritten.",
        ("trainmaster init my-gpt.yaml", "a job of Trainmaster's own trainer"),
        ("trainmaster init job.yaml --script train.py", "a job that runs train.py in two processes"),
    )
    command.add_argument(
        "file", type=Path, nargs="?", default=Path("job.yaml"), metavar="FILE", help="file to write (default: job.yaml)"
    )
    command.add_argument("--script", type=Path, metavar="FILE", help="the Python script that each rank of the job runs")
    command.set_defaults(func=_init)


def _init(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.job_files.first_job import write

    return write(options.file, options.script)
