"""`trainmaster logs`: shows what ranks print."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Shows what the ranks of a run or a job print. It writes nothing. On a cluster, the logs of replaced pods are "
        "shown for as long as these pods exist.\n\n" + common.WHAT,
        ("trainmaster logs runs/my-gpt --rank 3", "what rank 3 of a run on this machine printed"),
        ("trainmaster logs my-gpt -n team-a --all --follow", "all ranks of a job on a cluster, until it ends"),
    )
    common.add_what(command)
    which = command.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="show what this rank prints (default: 0)")
    which.add_argument(
        "--all",
        action="store_true",
        help="show what all ranks print: on a cluster in the order of time, on this machine one pod after the other",
    )
    command.add_argument("-f", "--follow", action="store_true", help="show new lines until the run or the job ends")
    common.add_cluster(command)
    command.set_defaults(func=_logs)


def _logs(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli import run_or_job

    where = common.where(options)
    rank = None if options.all else options.rank or 0
    out = run_or_job.of(options.what, where)
    if out is not None:
        from trainmaster_operator.cli.logs.run_logs import of_run

        return of_run(out, rank, options.follow)
    from trainmaster_operator.cli.logs.job_logs import logs

    return logs(where, options.what, rank, options.follow)
