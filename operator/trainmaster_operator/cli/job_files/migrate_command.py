"""`trainmaster migrate`: prints a job with the field names of this version."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Prints a job with the field names of this version, if its file was written before the first release. The "
        "changes are listed on standard error. The file itself is not changed, and comments are not printed.",
        ("trainmaster migrate old.yaml > job.yaml", "writes the new job to job.yaml"),
        ("trainmaster migrate old.yaml > /dev/null", "only lists the changes"),
    )
    common.add_job(command)
    command.set_defaults(func=_migrate)


def _migrate(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.job_files.migrate_job import migrate

    return migrate(options.job)
