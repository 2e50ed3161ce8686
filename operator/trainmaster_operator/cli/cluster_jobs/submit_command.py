"""`trainmaster submit`: creates a job on a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Has the cluster check the job and one of its pods without creating them (a dry run), and then creates the "
        "job. If the cluster refuses the job or its pod, nothing is created.",
        ("trainmaster submit job.yaml", "in the namespace of the kubeconfig's context"),
        ("trainmaster submit job.yaml -n team-a --watch", "shows the job until it ends"),
        exit_codes=(
            (0, "The job was created. With --watch: it succeeded."),
            (1, "With --watch: the job failed or was deleted."),
            (2, "The job was refused, and nothing was created."),
            (130, "--watch was stopped with Ctrl-C. The job continues."),
        ),
    )
    common.add_job(command)
    command.add_argument("-w", "--watch", action="store_true", help="show the job until it ends")
    common.add_plain(command)
    common.add_cluster(command)
    command.set_defaults(func=_submit)


def _submit(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.cluster_jobs.submit_job import submit

    return submit(common.where(options), options.job, options.watch, options.plain)
