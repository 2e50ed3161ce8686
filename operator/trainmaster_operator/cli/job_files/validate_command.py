"""`trainmaster validate`: lists what is wrong with a job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Lists everything that is wrong with a job, with the line of each problem. It starts nothing and leaves "
        "nothing behind. Exit code 0 means that the job is valid, 2 that it is not.",
        ("trainmaster validate job.yaml", "for a run on this machine: its data, programs and scripts must exist here"),
        ("trainmaster validate job.yaml --cluster", "for a cluster, which is asked if there is a kubeconfig"),
    )
    common.add_job(command)
    command.add_argument(
        "--cluster",
        action="store_true",
        help="the job is for a cluster: do not look for its folders, programs and scripts on this machine; if there is "
        "a kubeconfig, have the cluster check the job and one of its pods without creating them (a dry run); -n, "
        "--kubeconfig and --context imply this option",
    )
    common.add_cluster(command)
    command.set_defaults(func=_validate)


def _validate(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.job_files.validate_job import validate

    where = common.where(options)
    return validate(options.job, cluster=where if options.cluster or where.given else None)
